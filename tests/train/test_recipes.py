"""Recipes: every shipped one is read, settings change them, their text comes back, and their costs are as by hand."""

import contextlib
import json
import re
import tomllib
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import get_type_hints

import pytest
from formats.strategies import configs
from hypothesis import given, settings
from hypothesis import strategies as st

from elmofire import RecipeError
from elmofire.formats.config import BilmConfig
from elmofire.recipe import build, override, read_table, text_of
from elmofire.train.cost import CPU_SHARE, MEANT_FOR, Text, cost_of, distinct_words, flops_per_token, hours_on_cpu
from elmofire.train.recipes import find_recipe, recipe_file, recipe_names
from elmofire.train.settings import LossSettings, OptimizerSettings, Recipe, TrainSettings

PAGE = Path(__file__).parents[2] / "docs/reference/recipes.md"
RESULTS = Path(__file__).parents[2] / "benchmarks/results"
MINIMAL = {"train": {"updates": 1}}


def said_by(call, *arguments):
    with pytest.raises(RecipeError) as caught:
        call(*arguments)
    return str(caught.value)


class TestShipped:
    def test_the_promised_ones_are_there(self):
        promised = {"tiny", "small", "medium", "original", "finetune", "kim2016", "cnn-big-lstm"}
        assert promised <= set(recipe_names()) == set(MEANT_FOR)

    @pytest.mark.parametrize("name", recipe_names())
    def test_each_is_described_in_a_line_and_says_what_matters(self, name):
        recipe, table = find_recipe(name), read_table(recipe_file(name))
        assert re.fullmatch(r".{10,60}\.", recipe.description)
        stated = {f"{section}.{key}" for section, keys in table.items() if section != "description" for key in keys}
        wanted = {"data.reading", "data.text", "data.order", "loss.softmax", "loss.factor"}
        wanted |= {f"optimizer.{key}" for key in ("name", "rate", "clip", "warmup", "schedule")}
        wanted |= {"dropout.input", "dropout.layers", "dropout.output", "train.seed", "train.batch_tokens"}
        if name != "finetune":
            wanted |= {f"model.{field.name}" for field in fields(BilmConfig)} - {"model.head"}
        assert wanted <= stated

    def test_published_sizes_are_those_of_the_names(self):
        for name, parameters in (("small", 13_593_296), ("medium", 28_027_728), ("large", 93_600_848)):
            assert find_recipe(name).model.parameters == parameters
        assert find_recipe("original").model == find_recipe("finetune").model == BilmConfig()

    def test_the_ancestors_have_the_published_numbers_of_parameters(self):
        big = find_recipe("cnn-big-lstm").model
        assert (
            round(cost_of(find_recipe("cnn-big-lstm"), MEANT_FOR["cnn-big-lstm"]).parameters_with_head / 1e9, 2) == 1.04
        )
        stack = 2 * (4 * 8192 * (2048 + 1) + 8192 * 1024)
        assert round(stack / 1e6) == 151
        assert round((big.parameters - stack) / 1e6) == 72
        kim = cost_of(find_recipe("kim2016"), MEANT_FOR["kim2016"])
        assert round(kim.parameters_with_head / 1e6) == 5

    @pytest.mark.parametrize(
        "variant", ["highways=0", "highways=2", "highway=mlp", "highway=learned", "one_hot=true character_dim=261"]
    )
    def test_the_variants_in_kims_comments_are_recipes(self, variant):
        plain = find_recipe("kim2016").model.encoder
        changed = find_recipe("kim2016", variant.split()).model.encoder
        assert changed != plain
        text = recipe_file("kim2016").read_text()
        assert " ".join(f"model.encoder.{setting}" for setting in variant.split()) in text

    def test_the_papers_is_2018s(self):
        recipe = find_recipe("original")
        lanes = recipe.train.batch_tokens / recipe.data.steps
        assert (lanes, recipe.data.reading, recipe.data.text, recipe.data.reset) == (384, "lanes", "different", False)
        adagrad = OptimizerSettings(
            name="adagrad", rate=0.2, initial_accumulator=1.0, clip=10.0, warmup=0, schedule="constant"
        )
        assert recipe.optimizer == adagrad
        assert (recipe.loss.factor, recipe.loss.samples, recipe.train.epochs) == (20.0, 8192, 10)


class TestFinding:
    def test_a_file_of_ones_own(self, tmp_path):
        (tmp_path / "mine.toml").write_text('description = "Mine."\n[train]\nupdates = 3\n')
        assert find_recipe(tmp_path / "mine.toml") == find_recipe(str(tmp_path / "mine.toml"))
        assert find_recipe(tmp_path / "mine.toml", ["updates=4"]).train.updates == 4

    def test_a_printed_recipe_is_a_recipe_of_ones_own(self, tmp_path):
        (tmp_path / "mine.toml").write_text(recipe_file("tiny").read_text())
        assert find_recipe(tmp_path / "mine.toml") == find_recipe("tiny")

    def test_an_unknown_name_tells_those_that_there_are(self):
        said = said_by(find_recipe, "orginal")
        assert "no recipe 'orginal', did you mean original?" in said
        assert all(name in said for name in recipe_names())

    def test_a_missing_file_and_a_wrong_one_are_named(self, tmp_path):
        assert "none.toml: no such file" in said_by(find_recipe, tmp_path / "none.toml")
        file = tmp_path / "wrong.toml"
        file.write_text("[train]\nupdates = 1\nbatch = 5\n")
        assert f"{file}: unknown key `train.batch`" in said_by(find_recipe, file)

    @pytest.mark.parametrize(
        ("data", "said"),
        [
            (b"[train]\nupdates =\n", "at line 2"),
            (b"[train]\nseed = 1\nseed = 2\n", "at line 3"),
            (b'[train]\n\n# \xff\nseed = "', "is not UTF-8 (at line 3)"),
            (b"x = " + b"[" * 5000, ""),
            (b"x = " + b"9" * 5000, ""),
        ],
        ids=["no value", "twice", "latin-1", "deep", "long"],
    )
    def test_text_that_is_no_toml_is_an_error_with_file_and_line(self, tmp_path, data, said):
        file = tmp_path / "broken.toml"
        file.write_bytes(data)
        told = said_by(read_table, file)
        assert told.startswith(f"{file}: ")
        assert said in told

    def test_a_byte_order_mark_is_no_part_of_the_text(self, tmp_path):
        (tmp_path / "mine.toml").write_bytes(b"\xef\xbb\xbf[train]\r\nupdates = 3\r\n")
        assert read_table(tmp_path / "mine.toml") == {"train": {"updates": 3}}

    def test_updates_and_epochs_take_each_others_place(self, tmp_path):
        assert find_recipe("small").train.epochs is not None
        changed = find_recipe("small", ["updates=7"]).train
        assert (changed.updates, changed.epochs) == (7, None)
        (tmp_path / "mine.toml").write_text("[train]\nupdates = 3\n")
        changed = find_recipe(tmp_path / "mine.toml", ["epochs=0.5"]).train
        assert (changed.updates, changed.epochs) == (None, 0.5)
        assert "give one" in said_by(find_recipe, "small", ["updates=7", "epochs=3"])


class TestSettings:
    @pytest.mark.parametrize(
        ("setting", "section", "key", "value"),
        [
            ("rate=0.5", "optimizer", "rate", 0.5),
            ("optimizer.rate=1e-3", "optimizer", "rate", 0.001),
            ("rate = 2", "optimizer", "rate", 2.0),
            ("optimizer.name=sgd", "optimizer", "name", "sgd"),
            ("clip=none", "optimizer", "clip", None),
            ("average=null", "optimizer", "average", None),
            ("betas=[0.8, 0.9]", "optimizer", "betas", (0.8, 0.9)),
            ("deterministic=true", "train", "deterministic", True),
            ("lengths=[8, 16]", "data", "lengths", (8, 16)),
            ("batch_tokens=1_024", "train", "batch_tokens", 1024),
            ("dropout.layers=0.25", "dropout", "layers", 0.25),
            ("model.layers=3", "model", "layers", 3),
        ],
        ids=lambda part: str(part),
    )
    def test_a_value_is_read_as_its_fields_type(self, setting, section, key, value):
        changed = build(Recipe, override(MINIMAL, Recipe, [setting]))
        found = getattr(getattr(changed, section), key)
        assert found == value
        assert type(found) is type(value)

    def test_a_section_inside_a_section_is_reached_by_its_last_names(self):
        for setting in ("model.encoder.highways=1", "encoder.highways=1", "highways=1"):
            assert override({}, Recipe, [setting]) == {"model": {"encoder": {"highways": 1}}}
        assert override({}, Recipe, ['directions=["forward"]']) == {"model": {"directions": ["forward"]}}

    def test_only_what_is_set_changes_and_the_table_given_does_not(self):
        table = {"train": {"updates": 1, "seed": 5}}
        assert override(table, Recipe, ["seed=6", "seed=7"]) == {"train": {"updates": 1, "seed": 7}}
        assert table == {"train": {"updates": 1, "seed": 5}}

    def test_strings_are_taken_as_they_are(self):
        assert override({}, Recipe, ["description=a = [b"]) == {"description": "a = [b"}

    @pytest.mark.parametrize(
        ("setting", "said"),
        [
            ("projection=3", "`projection` is one of `model.encoder.projection`, `model.projection`"),
            ("layers=3", "`model.layers`, `dropout.layers`"),
            ("ratee=3", "unknown setting `ratee`, did you mean `optimizer.rate`?"),
            ("optimiser.rate=3", "did you mean `optimizer.rate`?"),
            ("loss.rate=3", "unknown setting `loss.rate`"),
            ("optimizer=3", "unknown setting `optimizer`"),
            ("=3", "unknown setting ``"),
            ("fast", "`fast` is no setting: they are given as key=value"),
            ("rate=fast", "`optimizer.rate` is 'fast', but should be of type float"),
            ("rate=none", "`optimizer.rate` is 'none', but should be of type float"),
            ("rate=", "`optimizer.rate` is '', but should be of type float"),
            ("warmup=1.5", "`optimizer.warmup` is '1.5', but should be of type int"),
            ("updates=1e3", "`train.updates` is '1e3', but should be of type int"),
            ("reset=yes", "`data.reset` is 'yes', but should be of type bool"),
            ("lengths=8", "`data.lengths` is 8, but should be of type"),
            ("lengths=[8, 1.5]", "`data.lengths[1]` is 1.5, but should be of type int"),
            ("lengths=[8]\nreset = true", "`data.lengths` is '[8]"),
            ("betas=[0.9]", "`optimizer.betas` is [0.9]"),
        ],
        ids=lambda part: part[:30],
    )
    def test_what_cannot_be_meant_is_named(self, setting, said):
        assert said in said_by(override, MINIMAL, Recipe, [setting])

    def test_all_mistakes_are_named_at_once(self):
        said = said_by(override, {"data": 5}, Recipe, ["rate=fast", "nonsense=1", "steps=2"])
        assert "'fast'" in said
        assert "`nonsense`" in said
        assert "`data` is 5, but should be a section" in said

    def test_values_out_of_bounds_are_blamed_on_what_gave_them(self, tmp_path):
        assert said_by(find_recipe, "tiny", ["seed=3", "rate=-1"]).startswith("rate=-1: `optimizer`: rate is -1, but")
        assert said_by(find_recipe, "tiny", ["head=5"]).startswith("head=5: `model.head` is given")
        both = said_by(find_recipe, "small", ["updates=7", "rate=-1", "seed=3", "epochs=3"])
        assert both.startswith("updates=7, rate=-1, epochs=3: ")
        (tmp_path / "mine.toml").write_text("[optimizer]\nrate = -1\n")  # and no word of how long
        said = said_by(find_recipe, tmp_path / "mine.toml", ["updates=7", "seed=3"])
        assert said == f"{tmp_path / 'mine.toml'}: `optimizer`: rate is -1, but should be positive"

    @pytest.mark.parametrize(
        ("key", "meant"),
        [
            ("learning_rate", "optimizer.rate"),
            ("lr", "optimizer.rate"),
            ("optimizer.lr", "optimizer.rate"),
            ("train.batch_size", "train.batch_tokens"),
        ],
    )
    def test_what_other_programs_call_a_setting_is_known(self, key, meant):
        assert f"unknown setting `{key}`, did you mean `{meant}`?" in said_by(find_recipe, "tiny", [f"{key}=1"])

    def test_where_settings_are_listed_is_said_where_one_is_unknown(self):
        said = said_by(find_recipe, "tiny", ["nonsense=1"])
        assert said.startswith("unknown setting `nonsense`\nhint: `elmofire recipes NAME` ")
        assert PAGE.relative_to(Path(__file__).parents[2]).as_posix() in said
        assert "hint" not in said_by(find_recipe, "tiny", ["rate=fast"])

    def test_what_would_have_no_effect_is_refused(self):
        assert "reset is true, but sentences" in said_by(find_recipe, "small", ["reset=true"])
        assert "reset is true, but sentences" in said_by(find_recipe, "en-small", ["reading=sentences", "reset=true"])
        for name in ("adagrad", "sgd"):
            said = said_by(find_recipe, "small", [f"optimizer.name={name}", "weight_decay=0.1"])
            assert f"weight_decay is 0.1, but {name} has none" in said
        assert find_recipe("small", ["reading=lanes", "reset=true", "weight_decay=0.1"]).data.reset

    @pytest.mark.parametrize("name", recipe_names())
    def test_a_recipes_own_settings_do_not_stand_in_the_way_of_others(self, name, tmp_path):
        text = recipe_file(name).read_text().replace("weight_decay = 0.0", "weight_decay = 0.1")
        (tmp_path / "mine.toml").write_text(text)
        assert not find_recipe(name, ["reading=sentences"]).data.reset
        kept = find_recipe(name, ["reading=lanes", "optimizer.name=adamw"])
        assert kept.data.reset == find_recipe(name).data.reset
        for optimizer in ("adamw", "adagrad", "sgd"):
            changed = find_recipe(tmp_path / "mine.toml", [f"optimizer.name={optimizer}"]).optimizer
            assert changed.weight_decay == (0.1 if optimizer == "adamw" and "weight_decay" in text else 0.0)

    @settings(deadline=None)
    @given(st.text(), st.text())
    def test_any_text_changes_a_recipe_or_is_a_recipe_error(self, key, value):
        for setting in (f"{key}={value}", f"filters={value}", f"clip={value}", f"rate={value}", f"reset={value}"):
            with contextlib.suppress(RecipeError):
                assert build(Recipe, override(MINIMAL, Recipe, [setting])).train.updates == 1


@dataclass(frozen=True)
class Plain:
    """What recipes may hold, in its odd corners."""

    name: str
    share: float
    count: int
    flags: tuple[bool, ...] = ()
    pairs: tuple[tuple[int, str], ...] = ()
    bound: float | None = 1.0
    limit: int | None = None


plain_ones = st.builds(
    Plain,
    name=st.text(st.characters(codec="utf-8")),
    share=st.floats(allow_nan=False),
    count=st.integers(-(2**62), 2**62),
    flags=st.lists(st.booleans()).map(tuple),
    pairs=st.lists(st.tuples(st.integers(0, 9), st.text(st.characters(codec="utf-8")))).map(tuple),
    bound=st.none() | st.floats(allow_nan=False),
    limit=st.none() | st.integers(0, 9),
)


class TestText:
    @pytest.mark.parametrize("name", recipe_names())
    def test_a_shipped_recipe_comes_back(self, name):
        recipe = find_recipe(name)
        assert build(Recipe, tomllib.loads(text_of(recipe))) == recipe

    @settings(deadline=None)
    @given(plain_ones)
    def test_any_value_comes_back(self, plain):
        assert build(Plain, tomllib.loads(text_of(plain))) == plain

    @settings(deadline=None)
    @given(configs())
    def test_any_model_comes_back(self, config):
        assert build(BilmConfig, tomllib.loads(text_of(config))) == config

    def test_what_is_none_is_left_out_unless_the_default_is_not(self):
        text = text_of(TrainSettings(updates=3)) + text_of(OptimizerSettings(clip=None))
        assert 'clip = "none"' in text
        assert not re.search("minutes|memory_gb|average", text.replace("checkpoint_minutes", ""))

    def test_none_is_no_value_of_what_must_have_one(self):
        assert "`rate` is 'none'" in said_by(build, OptimizerSettings, {"rate": "none"})


def measured_on_an_h200():
    """Whole steps as they run by default: in one part, and the small size's without dropout."""
    steps = [json.loads(line) for line in (RESULTS / "pretrain.jsonl").read_text().splitlines()]
    whole = {
        record["cell"]: record for record in steps if record["parts"] == 1 and "deterministic" not in record["cell"]
    }
    found = [(record["recipe"][0], record["recipe"][1:], record["tokens_per_second"]) for record in whole.values()]
    rates = [json.loads(line) for line in (RESULTS / "en_small_rates.jsonl").read_text().splitlines()]
    alike = [record for record in rates if "dropout.input=0" in record["kind"]]  # measured in one session
    return found + [("small", record["kind"].split(), record["tokens_per_second"]) for record in alike]


class TestCost:
    def test_of_the_papers_recipe_by_hand(self):
        cost = cost_of(find_recipe("original"), MEANT_FOR["original"])
        assert cost.parameters == 93_600_848  # as published
        assert cost.parameters_with_head == 93_600_848 + 793_471 * 512 + 793_471
        assert (
            cost.updates == 1_000_845
        )  # ten times 768,648,884 tokens, 7,680 at a time; 2018 left out the rest of each epoch
        layer = 4 * 4096 * (512 + 512) + 4096 * 512
        assert cost.flops_per_token.stacks == 6 * 2 * 2 * layer == 452_984_832
        assert cost.flops_per_token.softmax == 6 * 2 * 8193 * 512 == 50_337_792
        convolutions = 16 * (50 * 1 * 32 + 49 * 2 * 32 + 48 * 3 * 64 + 47 * 4 * 128 + 46 * 5 * 256 + 45 * 6 * 512 + 44 * 7 * 1024)  # fmt: skip
        word = convolutions + 2 * 2 * 2048 * 2048 + 2048 * 512
        assert 2 * word == pytest.approx(240e9 / 4_500, rel=0.01)  # counted apart from this code, for 4,500 words
        words = 2.5 * 15_360**0.77  # both directions read 7,680 tokens of their own
        assert cost.flops_per_token.encoder == pytest.approx(6 * word * words / 7_680)
        assert cost.flops == pytest.approx(7.6865e9 * (452_984_832 + 50_337_792 + 6 * word * words / 7_680), rel=1e-4)
        cells = 2 * 2 * 4096 * cost.tokens
        assert cost.hours == pytest.approx((cost.updates * 0.0025 + cells * 40e-12 + cost.flops / 670e12) / 3600)

    @pytest.mark.parametrize(("recipe", "settings_", "tokens_per_second"), measured_on_an_h200(), ids=str)
    def test_time_is_about_what_was_measured(self, recipe, settings_, tokens_per_second):
        found = find_recipe(recipe, settings_)
        cost = cost_of(found, Text("that of the records", 100_000_000, 100_000))
        assert cost.tokens / cost.hours / 3600 == pytest.approx(tokens_per_second, rel=0.2)

    def test_sizes_count_as_they_are_used(self):
        recipe = find_recipe("kim2016")
        loss, each = recipe.loss, {}
        for settings_ in ((), ("highways=0",), ("highway=mlp",), ("highway=learned",)):
            model = find_recipe("kim2016", settings_).model
            each[settings_] = flops_per_token(model, loss, vocabulary=10_000, distinct=0.5)
        layer = 6 * 0.5 * 525 * 525
        assert each[()].encoder - each[("highways=0",)].encoder == pytest.approx(2 * layer)
        assert each[("highway=mlp",)].encoder - each[("highways=0",)].encoder == pytest.approx(layer)
        assert each[("highway=learned",)].encoder - each[("highways=0",)].encoder == pytest.approx(3 * layer)
        assert each[()].stacks == 6 * 4 * 300 * (525 + 300 + 300 + 300)  # no projection
        assert each[()].softmax == 6 * 10_000 * 300  # full, one direction

    def test_no_more_rows_are_multiplied_than_the_head_has(self):
        few = flops_per_token(BilmConfig(), LossSettings(), vocabulary=1_000, distinct=0)
        assert few.softmax == 6 * 2 * 1_000 * 512
        assert few.encoder == 0
        assert few.total == few.stacks + few.softmax

    def test_the_length_of_a_run_is_its_updates_epochs_or_minutes(self):
        recipe, text = find_recipe("large"), Text("some", 10_240_000, 100_000)
        assert cost_of(recipe, text).updates == 10_000
        ended = replace(recipe, train=replace(recipe.train, epochs=None, updates=77))
        assert (cost_of(ended, text).updates, cost_of(ended, text).tokens) == (77, 77 * 10_240)
        timed = replace(recipe, train=replace(recipe.train, epochs=None, minutes=30.0))
        assert cost_of(timed, text).hours == pytest.approx(0.5, rel=1e-4)

    def test_hours_on_a_cpu_are_operations_by_its_rate_and_no_more_than_the_minutes(self):
        recipe, text = find_recipe("small", ["minutes=none"]), Text("some", 10_240_000, 100_000)
        cost = cost_of(recipe, text)
        hours = hours_on_cpu(recipe, text, 1e11)
        assert hours == pytest.approx(cost.flops / (CPU_SHARE * 1e11) / 3600)
        assert hours_on_cpu(recipe, text, 4e11) == pytest.approx(hours / 4)
        assert hours_on_cpu(find_recipe("small", ["minutes=90"]), text, 1e11) == 1.5
        assert hours_on_cpu(find_recipe("small", [f"minutes={120 * hours}"]), text, 1e11) == pytest.approx(hours)

    @pytest.mark.parametrize(
        ("tokens", "words"), [(640, 360), (2_560, 1_067), (5_120, 1_877), (10_240, 3_151), (20_480, 5_136)]
    )
    def test_distinct_words_are_about_as_counted_in_english(self, tokens, words):
        assert distinct_words(tokens) == pytest.approx(words, rel=0.1)

    def test_there_are_never_more_words_than_tokens(self):
        assert distinct_words(10) == 10


def sections(kind, name=""):
    """Dotted names of a recipe's sections, and their dataclasses."""
    found = {name: kind}
    for key, hint in get_type_hints(kind).items():
        if is_dataclass(hint):
            found |= sections(hint, f"{name}.{key}".lstrip("."))
    return found


@pytest.mark.parametrize("section", [name for name in sections(Recipe) if name])
def test_the_page_names_every_setting_with_its_default(section):
    page = PAGE.read_text(encoding="utf-8").partition(f"### [{section}]\n")[2].partition("\n#")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+?) \| .+ \|$", page, flags=re.MULTILINE))
    plain = {field.name: field.default for field in fields(sections(Recipe)[section]) if field.default is not MISSING}
    assert set(rows) == set(plain)
    for name, default in plain.items():
        told = None if rows[name] == "none" else tomllib.loads(f"value = {rows[name]}")["value"]
        listed = [list(part) if isinstance(part, tuple) else part for part in default] if isinstance(default, tuple) else default  # fmt: skip
        assert told == listed, name
