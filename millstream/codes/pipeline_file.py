"""Codes of problems with a pipeline file, and with what it refers to on this machine: 22xx."""

from __future__ import annotations

from millstream.codes.code import Code

_UNTOUCHED = "Nothing was started and no data was touched: the file is checked first."

PIPELINE_INVALID = Code(
    2200,
    "The pipeline file has several problems",
    happened=(
        "The pipeline cannot be run as it is written. Each line of the message is one problem, and ends with "
        "a code of its own."
    ),
    data=_UNTOUCHED,
    do=(
        "Look at the lines one by one, from the top: a mistake further up may cause others below. "
        "`millstream validate FILE` lists them all without running anything, `-o json` in a form for programs."
    ),
)

NOT_YAML = Code(
    2201,
    "The file is not YAML that can be read",
    happened="The file cannot be opened, is not UTF-8, is not YAML, or does not hold one mapping.",
    data=_UNTOUCHED,
    do=(
        "Correct the text at the line and column that the message names: indentation, a missing colon or "
        "quote, a tab. A file holds one pipeline, which begins with `apiVersion:`."
    ),
)

YAML_FEATURE = Code(
    2202,
    "The file uses YAML that has more than one meaning",
    happened=(
        "The file has a tag, a key that is given twice, a key that is not text, a merge of something that is "
        "not a mapping, or a plain value that readers of YAML understand differently (such as `0100` or "
        "`1_000`)."
    ),
    data=_UNTOUCHED,
    do="Quote the value when it is meant as text, write numbers in plain decimal, and give each key once.",
)

FILE_TOO_LARGE = Code(
    2203,
    "The pipeline file is too large or too deep",
    happened="The file has more text, more nesting, or unfolds through aliases into more than any pipeline needs.",
    data=_UNTOUCHED,
    do=("Take out what does not belong into it: data belongs into files that a source reads, code into modules."),
)

UNKNOWN_FIELD = Code(
    2204,
    "A field is not known",
    happened=(
        "The pipeline file has a field that does not exist at this place: it is misspelt, belongs elsewhere, "
        "or comes from a newer version."
    ),
    data=_UNTOUCHED,
    do=(
        "The message names the nearest field. docs/spec.md has all of them; an editor that knows "
        "`docs/pipeline.schema.json` completes them."
    ),
)

FIELD_MISSING = Code(
    2205,
    "A field is missing",
    happened="A field that has no default is not there, or none of several fields of which one is needed.",
    data=_UNTOUCHED,
    do="Add it. The message says what it means, or which fields there are to choose from.",
)

WRONG_TYPE = Code(
    2206,
    "A value is of another type",
    happened="A field holds a text where a number belongs, a list where a mapping belongs, and so on.",
    data=_UNTOUCHED,
    do=("Write a value of the type that is expected. What looks like a number and is meant as text needs quotes."),
)

OUT_OF_RANGE = Code(
    2207,
    "A number, duration or size is out of range",
    happened="A value is smaller or larger than the field allows, or than another field beside it allows.",
    data=_UNTOUCHED,
    do="Choose a value within the bounds in the message. docs/spec.md gives the range of each field.",
)

NOT_ALLOWED = Code(
    2208,
    "A value is not one of those allowed",
    happened=(
        "The field takes one of a few values, and this is another one. Where it names a source, a sink or "
        "another extension, its package may not be installed."
    ),
    data=_UNTOUCHED,
    do="Choose one of the values in the message, or install the package that brings the missing one.",
)

VALUE_MALFORMED = Code(
    2209,
    "A value is not written as it has to be",
    happened=(
        "A duration, size, name, address, URL, time, pattern or reference is not in the form that the field needs."
    ),
    data=_UNTOUCHED,
    do=(
        "The message shows an example of what is expected. `${NAME}` is not expanded: a value that stands "
        "elsewhere is written `{env: NAME}` or `{file: PATH}`."
    ),
)

FIELD_EMPTY = Code(
    2210,
    "A field is empty",
    happened="A field is there, and has no value: the text or list is empty, or nothing stands behind the colon.",
    data=_UNTOUCHED,
    do=(
        "Give it a value, or leave the field out where it has a default. `{}` takes the defaults of a group of fields."
    ),
)

NOT_SUPPORTED = Code(
    2211,
    "A field of Numaflow's is not supported",
    happened=(
        "Millstream reads Numaflow's pipelines, and refuses those fields that would change results and that "
        "it does not have."
    ),
    data=_UNTOUCHED,
    do=(
        "Write it with what there is; the message says what comes nearest, where there is something. "
        "docs/spec.md has all fields."
    ),
)

FIELDS_CONFLICT = Code(
    2212,
    "Fields do not go together",
    happened="Two fields exclude each other, or one needs another one that is not there or has another value.",
    data=_UNTOUCHED,
    do="Leave one of them out, or set the one that is needed, as the message says.",
)

NAME_TWICE = Code(
    2213,
    "A name is used twice",
    happened="Two vertices, two edges or two other things that are told apart by their names have the same one.",
    data=_UNTOUCHED,
    do="Rename one of them. Two edges between the same vertices need a `name` each.",
)

NO_SUCH_VERTEX = Code(
    2214,
    "An edge names a vertex that is not there",
    happened="`from` or `to` of an edge is not the name of any vertex of the pipeline.",
    data=_UNTOUCHED,
    do="Correct the name, or add the vertex. The message lists the names there are.",
)

EDGE_NOT_ALLOWED = Code(
    2215,
    "An edge cannot lie there",
    happened=(
        "An edge begins at a sink, ends at a source, appears twice, or is of a kind that its vertices do not have."
    ),
    data=_UNTOUCHED,
    do="Turn the edge round, remove it, or give it the kind that fits.",
)

NOT_CONNECTED = Code(
    2216,
    "A vertex is not connected",
    happened=(
        "A vertex has no input or no output, cannot be reached from a source, leads to no sink; or the "
        "pipeline has no source or no sink at all."
    ),
    data=_UNTOUCHED,
    do="Add the edge that is missing, or remove the vertex.",
)

CYCLE = Code(
    2217,
    "A cycle is not allowed there",
    happened=(
        "Edges lead back to a vertex that cannot be part of a cycle: a reduce, whose windows would wait for "
        "themselves, or a cycle without a way out."
    ),
    data=_UNTOUCHED,
    do="Lead the edge elsewhere. Maps may form a cycle; a reduce belongs before or behind it.",
)

SIDE_EDGE = Code(
    2218,
    "A dead-letter or late edge is missing, or is not allowed",
    happened=(
        "A policy says that records go to a dead-letter or late edge, and there is none; or there is such an "
        "edge, and nothing would ever be sent along it."
    ),
    data=_UNTOUCHED,
    do="Add the edge with `kind: deadLetter` or `kind: late`, or change the policy that names it.",
)

NO_SUCH_FILE = Code(
    2219,
    "A file, directory or program is not there",
    happened=(
        "The pipeline file refers to a file, a directory or a program that this machine does not have. "
        "Relative paths start from the directory of the pipeline file, or from `workingDir`."
    ),
    data=_UNTOUCHED,
    do=(
        "Correct the path or create the file. To check a file that is meant for another machine use "
        "`millstream validate --file-only`."
    ),
)

FILE_UNUSABLE = Code(
    2220,
    "A file or directory cannot be used",
    happened=(
        "It is there, but may not be read, written or executed by you, or something else than expected has its name."
    ),
    data=_UNTOUCHED,
    do="Change its rights (`chmod`), or name another one.",
)

FUNCTION_NOT_FOUND = Code(
    2221,
    "The Python function is not there",
    happened=(
        "A `python:` reference leads to no module, to a file that Python cannot compile, or to a module that "
        "has no such function."
    ),
    data=_UNTOUCHED,
    do=(
        "Correct the reference (`package.module:function` or `path/to/file.py:function`), or the file. The "
        "message names functions that are there."
    ),
)

SANDBOX_IMPOSSIBLE = Code(
    2223,
    "A function cannot be held as it is asked for",
    happened=(
        "This machine cannot keep a function in the sandbox or within the limits that the pipeline asks for, "
        "or the sandbox would show the function your home directory."
    ),
    data=_UNTOUCHED,
    do=(
        "Give the function a `workingDir` with nothing but code in it; where the system cannot hold "
        "functions, use one that can, or ask for less. docs/security.md says what is needed."
    ),
)

GUARANTEE_NOT_HELD = Code(
    2225,
    "A guarantee is demanded that cannot be held",
    happened=(
        "A source or a sink has `guarantee: exactlyOnce` or `atLeastOnce`, and with these settings its kind promises "
        "less. The message says what it promises."
    ),
    data=_UNTOUCHED,
    do=(
        "Change the settings as the message says, take a kind that holds what you demand (`millstream connectors` "
        "lists what each promises), or take the demand away and accept what is promised."
    ),
)

PLACE_TAKEN = Code(
    2224,
    "Two parts of the pipeline want the same place",
    happened="Two file sinks write into one directory, or several replicas would listen on one port.",
    data=_UNTOUCHED,
    do=(
        "Give each a directory or a port of its own. A file sink needs its directory for itself, to know "
        "after a crash which files are its own."
    ),
)

EDGE_NOT_CHAINED = Code(
    2240,
    "An edge cannot be chained",
    happened=(
        "An edge has `chain: true`, and the vertices at its ends cannot run as one lane: the first is not a "
        "source or a map, the second not a map or a sink that can end a chain, their partitions, replicas or placement "
        "differ, or other edges meet there."
    ),
    data=_UNTOUCHED,
    do="Remove what the message names, or leave `chain` out: then the edge has a buffer.",
)
