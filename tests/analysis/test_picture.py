"""The picture is whole SVG, and its labels cover neither each other nor a point."""

import math
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elmofire.analysis.picture import HEIGHT, LINE, MARKER, WIDE, Box, draw_usages, place_labels, text_width
from elmofire.analysis.usages import Usage

SVG = "{http://www.w3.org/2000/svg}"


def usages_of(senses: list[str]) -> list[Usage]:
    return [
        Usage(("a", "play"), 1, sense, f"the {number} & only <b> ", " on a stage")
        for number, sense in enumerate(senses)
    ]


def vectors_of(usages: int, layers: int = 3) -> np.ndarray:
    vectors = np.random.default_rng(0).standard_normal((layers, usages, 8))
    vectors[0] = vectors[0, :1]  # layer 0 is context free
    return vectors


def drawn(senses: list[str]) -> ET.Element:
    usages = usages_of(senses)
    return ET.fromstring(draw_usages("A & B", {"play": (usages, vectors_of(len(usages)))}))


class TestPicture:
    def test_every_usage_has_a_point_and_a_label_in_each_layer_with_context(self):
        root = drawn(["theater", "theater", "sport", "children"])
        tips = [title.text for title in root.iter(f"{SVG}title")]
        assert tips.count("sport: the 2 & only <b> play on a stage") == 2
        labels = ["".join(text.itertext()) for text in root.iter(f"{SVG}text") if text.get("class") == "label"]
        assert sum("play on a stage" in label for label in labels) == 2 * 4

    def test_layer_0_is_one_point_and_is_called_context_free(self):
        root = drawn(["theater", "sport", "sport"])
        words = ["".join(text.itertext()) for text in root.iter(f"{SVG}text")]
        assert [text for text in words if text.startswith("Layer")] == ["Layer 0 (context-free)", "Layer 1", "Layer 2"]
        assert "all 3 usages" in words
        assert len(list(root.iter(f"{SVG}circle"))) == 1

    def test_the_legend_has_each_sense_once_and_senses_differ_in_color_and_shape(self):
        root = drawn(["theater", "sport", "theater", "children"])
        words = [text.text for text in root.iter(f"{SVG}text")]
        assert [words.count(sense) for sense in ("theater", "sport", "children")] == [1, 1, 1]
        legend = [path for path in root.iter(f"{SVG}path") if path.get("fill") and not len(path)]
        assert len({path.get("fill") for path in legend}) == 3
        relative = {"".join(filter(str.isalpha, path.get("d") or "")) for path in legend}
        assert len(relative) == 3

    def test_the_same_usages_give_the_same_picture(self):
        usages = usages_of(["theater", "sport"])
        pictures = {draw_usages("", {"play": (usages, vectors_of(2))}) for _ in range(2)}
        assert len(pictures) == 1


inside = st.tuples(st.floats(10, WIDE - 10), st.floats(10, HEIGHT - 10))


class TestLabels:
    @settings(max_examples=30, deadline=None)
    @given(points=st.lists(inside, min_size=1, max_size=8), data=st.data())
    def test_labels_stay_inside_and_cover_neither_points_nor_each_other(self, points, data):
        sizes = [data.draw(st.floats(40, 200)) for _ in points]
        placed = place_labels(points, sizes, WIDE, HEIGHT)
        assert len(placed) == len(points)
        boxes = [box for box in placed if box is not None]
        for number, box in enumerate(boxes):
            assert box.x >= 0
            assert box.x + box.width <= WIDE
            assert box.y >= 0
            assert box.y + box.height <= HEIGHT
            for x, y in points:
                assert math.dist(box.nearest_to(x, y), (x, y)) >= MARKER
            for other in boxes[number + 1 :]:
                apart = max(other.x - box.x - box.width, box.x - other.x - other.width)
                assert max(apart, other.y - box.y - box.height, box.y - other.y - other.height) >= 0

    def test_no_line_from_a_label_to_its_point_runs_through_another_label(self):
        points = [(60.0 + 2 * n, 120.0 + 9 * n) for n in range(6)]
        placed = place_labels(points, [150.0] * 6, WIDE, HEIGHT)
        for number, (point, box) in enumerate(zip(points, placed, strict=True)):
            assert box is not None
            end = box.nearest_to(*point)
            middle = [((9 - n) * point[0] + n * end[0]) / 9 for n in range(10)]
            line = [(x, ((9 - n) * point[1] + n * end[1]) / 9) for n, x in enumerate(middle)]
            for other in placed[:number] + placed[number + 1 :]:
                assert other is not None
                inside = [math.dist(other.nearest_to(*place), place) == 0 for place in line]
                assert not any(inside[1:-1])

    @pytest.mark.parametrize("crowd", [1, 6, 20])
    def test_usages_that_lie_close_together_all_get_their_labels(self, crowd):
        """Senses are clusters: six labels of full width around three pairs of points that touch."""
        points = [(100.0 + 115 * (n // 2), 140.0 + crowd * (n % 2)) for n in range(6)]
        assert None not in place_labels(points, [190.0] * 6, WIDE, HEIGHT)

    def test_a_lone_label_stands_beside_its_point(self):
        [box] = place_labels([(200.0, 100.0)], [80.0], WIDE, HEIGHT)
        assert box is not None
        assert box.y < 100 < box.y + LINE
        assert MARKER < box.x - 200 < 2 * MARKER

    def test_where_there_is_no_room_there_is_no_label(self):
        assert place_labels([(10.0, 10.0)], [500.0], WIDE, HEIGHT) == [None]

    def test_boxes_overlap_as_their_pixels_do(self):
        for x in range(-4, 5):
            for y in range(-4, 5):
                one, other = Box(0, 0, 3, 2), Box(x, y, 2, 3)
                pixels = {(a, b) for a in range(3) for b in range(2)} & {
                    (x + a, y + b) for a in range(2) for b in range(3)
                }
                assert one.overlaps(other) == bool(pixels)

    def test_wide_letters_take_more_room_than_narrow_ones(self):
        assert text_width("mmm") > text_width("nnn") > text_width("ttt") > text_width("iii")
        assert text_width("ab") == pytest.approx(text_width("a") + text_width("b"))
