"""Cases as deviations from a plain one: a few named settings, each with a hostile value.

A case is a dict of names, so that it can be printed, minimised by leaving settings out, and kept as a test.
"""

from hypothesis import strategies as st


def cases(choices, seeds=1000, most=5):
    """Return a strategy of dicts: a seed, and up to `most` of the settings with one of their values.

    choices : dict from the name of a setting to the names of its values
    """

    def drawn(names):
        return st.fixed_dictionaries({name: st.sampled_from(choices[name]) for name in sorted(names)})

    names = st.lists(st.sampled_from(sorted(choices)), max_size=most, unique=True)
    return st.tuples(st.integers(0, seeds), names.flatmap(drawn)).map(lambda pair: {"seed": pair[0], **pair[1]})


def takes_the_default(case):
    """Return whether a case leaves the prior to the default, whose fit takes ten times as long: one in four does."""
    return case["seed"] % 4 == 0
