import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybreak.data.demo_corpus.prose import prose

NUMPY_STYLE = """
    Compute the weighted average along the specified axis.

    Parameters
    ----------
    a : array_like, shape (n, m)
        Array containing data to be averaged. If `a` is not an array, a
        conversion is attempted.
    axis : None or int or tuple of ints, optional
        Axis or axes along which to average `a`.

    Returns
    -------
    retval, [sum_of_weights] : array_type or double
        The average along the specified axis, see [1]_.
    bool
        Whether any of the weights was zero.

    See Also
    --------
    mean : The plain mean of an array without weights.
    ma.average, nanmean

    .. versionadded:: 1.5

    .. note::
       The sum of the weights must not be zero.

    References
    ----------
    .. [1] Wikipedia, the free encyclopedia, https://en.wikipedia.org/wiki/Mean

    Examples
    --------
    >>> data = np.arange(1, 5)
    >>> np.average(data)
    2.5

    The weights can be given for :class:`~numpy.ndarray` input as well::

        print(the_code_in_this_block is dropped)

    Done with the example of the average.
    """

GOOGLE_STYLE = """Instantiate a model from a **configuration**, as in [the guide](https://example.org/guide).

    Args:
        input_ids (`torch.LongTensor` of shape `(batch_size, length)`, *optional*):
            Indices of the tokens in the vocabulary.
            They are obtained with the [`AutoTokenizer`].

            - 1 for tokens that are **not masked**,
            - 0 for tokens that are masked.
        use_cache (`bool`, *optional*, defaults to `True`): Whether the model should return the last states.

    Returns:
        str: The name of the model that was found.

    Example:

    ```python
    >>> model = this_is_code(that is in a fence)
    ```

    | Model | Score of the model |
    |-------|--------------------|
    | small | the lowest of them |
    """


def test_numpy_style_keeps_descriptions_and_drops_types_references_and_code() -> None:
    assert prose(NUMPY_STYLE) == [
        "Compute the weighted average along the specified axis.",
        "Array containing data to be averaged. If a is not an array, a conversion is attempted.",
        "Axis or axes along which to average a.",
        "The average along the specified axis.",
        "Whether any of the weights was zero.",
        "The plain mean of an array without weights.",
        "The sum of the weights must not be zero.",
        "The weights can be given for numpy.ndarray input as well:",
        "Done with the example of the average.",
    ]


def test_google_style_keeps_descriptions_and_drops_heads_fences_and_tables() -> None:
    assert prose(GOOGLE_STYLE) == [
        "Instantiate a model from a configuration, as in the guide.",
        "Indices of the tokens in the vocabulary. They are obtained with the AutoTokenizer.",
        "1 for tokens that are not masked,",
        "0 for tokens that are masked.",
        "Whether the model should return the last states.",
        "The name of the model that was found.",
    ]


def test_sphinx_fields_lose_their_heads_and_types() -> None:
    text = """Open the file and return it.

    :param path: where the file lies on the disk.
    :type path: str or the path of a file
    :return: the file that was opened for reading.
    """
    assert prose(text) == [
        "Open the file and return it.",
        "where the file lies on the disk.",
        "the file that was opened for reading.",
    ]


@pytest.mark.parametrize(
    "text",
    [
        ">>> the output of this example\n... is not the prose\nthat we want to have here",
        "x = [1, 2, 3] + y[0:4] ** 2 / {a: b}",
        "Short.\n\n.. math::\n\n   the sum of all x is a formula and not the prose",
        "Short.\n\n.. code-block:: python\n\n   this is the code that is not prose",
        "too short",
    ],
)
def test_what_is_no_prose_is_dropped(text: str) -> None:
    assert prose(text) == []


WORDS = "open the file and return it in a place of the user to which he is sent".split()
MARKS = [*"`it` *now* here. ``x``, :class:`Path` | - <b> `".split(), "\n", "\n\n", "\n    ", "\t"]


@given(st.lists(st.sampled_from(WORDS * 2 + MARKS), min_size=8, max_size=40).map(" ".join))
def test_any_text_gives_clean_lines(text: str) -> None:
    for paragraph in prose(text):
        assert paragraph == " ".join(paragraph.split()) and len(paragraph.split()) >= 5 and "`" not in paragraph
