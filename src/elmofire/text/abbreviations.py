"""Words that are written with a full stop, by language: what `sentences.py` knows of them."""


def _words(listed: str) -> frozenset[str]:
    return frozenset(listed.split())


# ── English ─────────────────────────────────────────────────────────────────────────────────────────────────────────

# No sentence ends after these, whatever follows.
BEFORE_NAMES = _words("""
    Mr Mrs Ms Messrs Mme Mlle Mmes Dr Drs Prof Profs Rev Revd Hon Gen Gens Brig Col Cols Maj Capt Cmdr Cdr Comdr Lt Lieut Sgt
    Sergt Cpl Pvt Adm Gov Govs Sen Sens Rep Reps Pres Supt Insp Msgr Bp Abp Ven St Ste Sta Sts SS Mt Mts Ft Fr vs v cf viz eg ie
    e.g i.e P.S N.B approx ca esp incl Jas Jos Chas Wm Geo Thos Robt Saml Benj Alex Edw
""")
# Nor after these where a number follows.
BEFORE_NUMBERS = _words("""
    No Nos no nos Fig Figs fig figs p pp Vol Vols vol vols ch chs Ch chap Chap sec secs Sec sect art Art arts par para cl ll l n
    nn fol ff Ext ext Op op Bk bk bks pt Pt pts nr Eq eq eqs ver Lib lib cap lat Sect Exod Lev Num Deut Sam Ps Isa Jer Matt Rom
    Cor
""")
# Single letters, U.S. and these end a sentence only before one of STARTERS.
ANYWHERE = _words("""
    Inc Corp Co Cos Ltd Bros Jr Sr Esq etc al ib ibid comp Comp Ave Blvd Rd Sq Dept Univ Assn Assoc Hosp Jan Feb Apr Jun Jul Aug
    Sept Sep Oct Nov Dec Mon Tue Tues Wed Thu Thur Thurs Fri Ala Ariz Ark Calif Cal Colo Conn Del Fla Ga Ill Ind Kan Ky La Mass
    Md Mich Minn Miss Mo Mont Neb Nev Okla Ore Pa Penn Tenn Tex Va Vt Wash Wis Wyo oz lb lbs ft yd yds hr hrs min mins ed eds
    trans est dist repr rev fl lit abbr orig
""")
# Sentences often begin with these, and names hardly ever.
STARTERS = _words("""
    The A An In On At He She It They We You I This That These Those There Here But And Or So If When While After Before As For
    From By With To His Her Its Their Our My Your However Although Though Since Because During Until Then Thus Now What Who
    Where Why How Not Some Many Most Several Both Each Another All Later According Despite Also Such Once Nor Yet Is Are Was
    Were Do Does Did Have Has Had Can Could Would Should Instead Among Between Through Within Upon Today Other Only Under Every
    Perhaps Please Thanks Meanwhile Moreover Nevertheless Furthermore Therefore Finally Unlike Like Following It's He's She's
    That's There's I'm I've I'd I'll They're We're Don't
""")
# After "Why?" the sentence goes on with: Mr. Bell asked.
SAYING = _words("""
    said says asked asks cried replied exclaimed answered inquired enquired shouted called demanded returned whispered murmured
    muttered thought wondered repeated added continued remarked observed sighed laughed screamed roared growled interrupted
""")

# ── other languages ─────────────────────────────────────────────────────────────────────────────────────────────────

# No sentence ends after these.
OTHERS = {
    language: _words(words)
    for language, words in {
        "cs": "dr Dr prof Prof ing Ing Mgr sv č str tj tzv např atd apod cca",
        "de": "Dr Prof Hr Hrn Fr Frl St Nr Bd Hg Hrsg vgl Vgl bzw ca evtl ggf inkl sog Abb Kap Str Jh geb gest Abt Art Abs Ing Dipl",
        "es": "Sr Sra Srta Sres Da Dr Dra Prof Ud Uds Vd Sto Sta Gral Cap Lic Ing Av art fig núm pág págs vol cap aprox",
        "fr": "MM Mme Mmes Mlle Dr Pr Me St Ste Mgr pp vol chap art fig cf env av apr éd",
        "hu": "dr Dr prof Prof ifj Ifj id özv Szt St sz pl ún ill kb vö köt szerk ford évf",
        "it": "Sig Sigg Dr Dott Prof Ing Avv On Mons pp vol cap art fig cfr ca",
        "nl": "dhr mevr mw dr drs Dr Drs prof Prof ir ing mr ds St nr bijv bv blz ca vgl",
        "pl": "dr Dr prof Prof mgr inż hab ks św ul al nr np tzn tzw por str gen płk mjr kpt",
        "pt": "Sr Sra Srs Dr Dra Prof Exmo Av Eng Gen Cel Cap art fig núm pág págs vol cap aprox",
        "ru": "гг вв им ул кв стр рис табл см ср тт тыс млн млрд руб проф акад св",  # noqa: RUF001
        "sv": "dr Dr prof Prof ca nr jfr kl st",
        "tr": "Dr Prof Doç Yrd Av Alb Gen Org Bkz bkz Sn St Hz No no vb ss çev haz yay örn Mah Cad Sok",
    }.items()
}
# Nor after these where a number follows, in any of them.
OTHERS_BEFORE_NUMBERS = _words("No Nos no Nr nr p pp vol Vol")
# Where a number with a full stop is an ordinal or part of a date: 3. Oktober, 2. kötet.
WITH_ORDINALS = _words("bs cs da de et fi fo hr hu is ko lb lt lv nb nn no pl sk sl sr tr")
