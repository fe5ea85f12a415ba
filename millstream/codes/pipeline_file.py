"""Codes for problems with a pipeline file, and with the files and programs that it refers to on this machine: 22xx."""

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
        "Read the lines one by one, from the top: a mistake further up may cause others below. `millstream "
        "validate FILE` lists them all without running anything, and `-o json` prints them for programs."
    ),
)

NOT_YAML = Code(
    2201,
    "The file is not readable YAML",
    happened="The file cannot be opened, is not UTF-8, is not YAML, or does not contain exactly one mapping.",
    data=_UNTOUCHED,
    do=(
        "Correct the text at the line and column that the message names: indentation, a missing colon or "
        "quote, a tab. A file holds one pipeline, which begins with `apiVersion:`."
    ),
)

YAML_FEATURE = Code(
    2202,
    "The file uses ambiguous YAML",
    happened=(
        "The file has a tag, a key that is given twice, a key that is not text, a merge of something that is not a "
        "mapping, or a plain value that YAML readers interpret differently (such as `0100` or `1_000`)."
    ),
    data=_UNTOUCHED,
    do="Quote the value if it is meant as text, write numbers in plain decimal, and give each key once.",
)

FILE_TOO_LARGE = Code(
    2203,
    "The pipeline file is too large or too deep",
    happened="The file has more text or nesting than any pipeline needs, or expands to more through aliases.",
    data=_UNTOUCHED,
    do=("Remove what does not belong in it: data belongs in files that a source reads, code in modules."),
)

UNKNOWN_FIELD = Code(
    2204,
    "Unknown field",
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
    happened="A required field is missing, or none of several fields is present of which one is needed.",
    data=_UNTOUCHED,
    do="Add it. The message says what it means, or which fields you can choose from.",
)

WRONG_TYPE = Code(
    2206,
    "A value has the wrong type",
    happened="For example, a field holds a text instead of a number, or a list instead of a mapping.",
    data=_UNTOUCHED,
    do=("Write a value of the expected type. A text that looks like a number needs quotes."),
)

OUT_OF_RANGE = Code(
    2207,
    "A number, duration or size is out of range",
    happened="A value is smaller or larger than the field allows, or than another field next to it allows.",
    data=_UNTOUCHED,
    do="Choose a value within the bounds in the message. docs/spec.md gives the range of each field.",
)

NOT_ALLOWED = Code(
    2208,
    "A value is not one of those allowed",
    happened=(
        "The field takes one of a few values, and this is not one of them. If it names a source, a sink or another "
        "extension, its package may not be installed."
    ),
    data=_UNTOUCHED,
    do="Choose one of the values in the message, or install the package that provides the missing one.",
)

VALUE_MALFORMED = Code(
    2209,
    "A value has the wrong form",
    happened=(
        "A duration, size, name, address, URL, time, pattern or reference does not have the form that the field needs."
    ),
    data=_UNTOUCHED,
    do=(
        "The message shows an example. `${NAME}` is not expanded: refer to a value that is stored elsewhere with "
        "`{env: NAME}` or `{file: PATH}`."
    ),
)

FIELD_EMPTY = Code(
    2210,
    "A field is empty",
    happened="A field is present but has no value: the text or list is empty, or nothing follows the colon.",
    data=_UNTOUCHED,
    do=("Give it a value, or leave the field out if it has a default. `{}` takes the defaults of a group of fields."),
)

NOT_SUPPORTED = Code(
    2211,
    "A field of Numaflow is not supported",
    happened=(
        "Millstream reads Numaflow's pipelines, and refuses those fields that it does not have and that would "
        "change results."
    ),
    data=_UNTOUCHED,
    do=(
        "Use the fields that exist; the message names the nearest one, if there is one. docs/spec.md lists all fields."
    ),
)

FIELDS_CONFLICT = Code(
    2212,
    "Fields exclude or require each other",
    happened="Two fields exclude each other, or one needs another one that is missing or has another value.",
    data=_UNTOUCHED,
    do="Remove one of them, or set the one that is needed, as the message says.",
)

NAME_TWICE = Code(
    2213,
    "A name is used twice",
    happened="Two vertices, two edges or two other things that are identified by their names have the same name.",
    data=_UNTOUCHED,
    do="Rename one of them. Two edges between the same vertices need a `name` each.",
)

NO_SUCH_VERTEX = Code(
    2214,
    "An edge names a vertex that does not exist",
    happened="`from` or `to` of an edge is not the name of any vertex of the pipeline.",
    data=_UNTOUCHED,
    do="Correct the name, or add the vertex. The message lists the existing names.",
)

EDGE_NOT_ALLOWED = Code(
    2215,
    "An edge is not allowed there",
    happened=(
        "An edge begins at a sink, ends at a source, appears twice, or is of a kind that its vertices do not have."
    ),
    data=_UNTOUCHED,
    do="Reverse the edge, remove it, or give it the right kind.",
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
        "Edges form a cycle through a vertex that cannot be part of one: a reduce, whose windows would wait for "
        "themselves, or a cycle without a way out."
    ),
    data=_UNTOUCHED,
    do="Change the edge. Maps may form a cycle; a reduce belongs before or after it.",
)

SIDE_EDGE = Code(
    2218,
    "A dead-letter or late edge is missing, or is not allowed",
    happened=(
        "A policy sends records to a dead-letter or late edge, and there is none; or there is such an edge, and "
        "nothing would ever be sent along it."
    ),
    data=_UNTOUCHED,
    do="Add the edge with `kind: deadLetter` or `kind: late`, or change the policy that needs it.",
)

NO_SUCH_FILE = Code(
    2219,
    "A file, directory or program does not exist",
    happened=(
        "The pipeline file refers to a file, a directory or a program that this machine does not have. Paths are "
        "relative to the directory of the pipeline file, or to `workingDir`."
    ),
    data=_UNTOUCHED,
    do=(
        "Correct the path or create the file. To check a file that is meant for another machine, use `millstream "
        "validate --file-only`."
    ),
)

FILE_UNUSABLE = Code(
    2220,
    "A file or directory cannot be used",
    happened=("It exists, but you may not read, write or execute it, or it is not what was expected."),
    data=_UNTOUCHED,
    do="Change its permissions (`chmod`), or name another one.",
)

FUNCTION_NOT_FOUND = Code(
    2221,
    "The Python function does not exist",
    happened=(
        "A `python:` reference names no module, a file that Python cannot compile, or a module that has no such "
        "function."
    ),
    data=_UNTOUCHED,
    do=(
        "Correct the reference (`package.module:function` or `path/to/file.py:function`), or the file. The message "
        "names existing functions."
    ),
)

SANDBOX_IMPOSSIBLE = Code(
    2223,
    "A function cannot be confined as requested",
    happened=(
        "This machine cannot keep a function in the sandbox or within the limits that the pipeline asks for, or "
        "the sandbox would expose your home directory to the function."
    ),
    data=_UNTOUCHED,
    do=(
        "Give the function a `workingDir` that contains only code; if the system cannot confine functions, use one "
        "that can, or ask for less. docs/security.md says what is needed."
    ),
)

GUARANTEE_NOT_HELD = Code(
    2225,
    "A demanded guarantee cannot be kept",
    happened=(
        "A source or a sink has `guarantee: exactlyOnce` or `atLeastOnce`, and with these settings its kind "
        "guarantees less. The message says what it guarantees."
    ),
    data=_UNTOUCHED,
    do=(
        "Change the settings as the message says, use a kind that guarantees what you demand (`millstream "
        "connectors` lists them), or remove the demand and accept the weaker guarantee."
    ),
)

PLACE_TAKEN = Code(
    2224,
    "Two parts of the pipeline use the same place",
    happened="Two file sinks write to one directory, or several replicas would listen on one port.",
    data=_UNTOUCHED,
    do=(
        "Give each its own directory or port. A file sink needs a directory of its own, so that after a crash it "
        "knows which files are its own."
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
    do="Remove what the message names, or leave `chain` out; then the edge has a buffer.",
)
