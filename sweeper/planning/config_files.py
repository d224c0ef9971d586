"""Reads the YAML files of the configuration. A mistake in a file of the user's is reported with its file and line.

Hydra finds and merges the files; each one is read here, since Hydra and OmegaConf report a file that cannot be read by
a traceback, and a key of the wrong kind without its line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import yaml  # type: ignore[import-untyped]
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult
from omegaconf import OmegaConf
from omegaconf._utils import get_yaml_loader

from sweeper.cards import CONF
from sweeper.errors import Mistake, did_you_mean
from sweeper.plan import typed
from sweeper.planning.in_yaml import GROUPS, in_yaml
from sweeper.planning.schema import POINT_KEYS, Keys, expected_type
from sweeper.planning.suggestions import no_such_key
from sweeper.planning.synonyms import GRIDS
from sweeper.planning.typed_numbers import value_in_units

PACKAGE_LINE = "# @package _global_"
GRID = "grid: {batch: [1, 2, 4]}"
POINTS = "points: [{batch: 1}, {batch: 4, context: 64}]"
TYPES = {each.name: str(each.type) for each in fields(Keys)}
MOST_REPEATED = 100_000  # values that aliases repeat; more is a file that expands without end
# Keys whose values are text: YAML would read `no`, `007` and `1e3` as something else. So are environment variables.
OF_POINTS = ("model", "workload", "inputs")  # groups whose options a point has
TEXT_KEYS = ("model", "workload", "inputs", *(key for key, type in TYPES.items() if type.startswith("str")))
TAGS = tuple(f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "null", "map", "seq"))
SEVERAL = re.compile(r",|^(interval|range|choice|glob)\(")


class _Loader(get_yaml_loader()):  # type: ignore[misc]
    """OmegaConf's own loader: it refuses a key that is given twice, and reads no dates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFile:
    """A file of the user's. `package`: the dotted path below which its keys are, empty for the whole configuration."""

    name: str  # as it is shown: relative to the current folder if it is below
    group: str
    option: str
    package: str
    root: yaml.MappingNode

    def mistake(self, line: int, text: str) -> Mistake:
        return Mistake(f"{self.name}, line {line}: {text}")

    def lines(self) -> Iterator[tuple[str, Any, int]]:
        """Each value that the file gives a key, with the dotted key and the line."""
        for key, node in _items(self.root):
            if key == "defaults":
                yield from _lines_of_defaults(self.group, node)
            elif not self.package and key == "grid" and isinstance(node, yaml.MappingNode):
                for swept, values in _items(node):
                    yield from _lines_of_values(swept, values)
            elif not self.package and key == "points" and isinstance(node, yaml.SequenceNode):
                for point in node.value:
                    for listed, value in _items(point) if isinstance(point, yaml.MappingNode) else ():
                        yield listed, _value(value), _line(value)
            else:
                yield from _lines_of_key(f"{self.package}.{key}".lstrip("."), node)


class FileSource(FileConfigSource):
    """A folder of configuration files, as Hydra searches it."""

    def __init__(self, provider: str, path: str) -> None:
        super().__init__(provider, path)
        self.read: dict[str, ConfigFile] = {}  # the user's files that were read, by path in the folder

    def __deepcopy__(self, memo: dict[int, Any]) -> FileSource:
        """Itself: Hydra copies its sources for each composition, and a mistake needs the files that were read."""
        return self

    def load_config(self, config_path: str) -> ConfigResult:
        """Raises Mistake."""
        if os.path.realpath(self.path) == os.path.realpath(CONF):
            return super().load_config(config_path)
        path = os.path.join(self.path, self._normalize_file_name(config_path))
        name = shown(path)
        group, option = os.path.split(config_path.removesuffix(".yaml"))
        file, values, package = _parsed(_text(path, name), name, group, option)
        self.read[config_path] = file
        return ConfigResult(
            config=OmegaConf.create(values), path=self.full_path(), provider=self.provider, header={"package": package}
        )


def shown(path: str) -> str:
    """A path as it is shown to a person: relative to the current folder if it is below it."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative


def register() -> None:
    """Let Hydra read files through FileSource. Its registry keeps the first class of a scheme, its own."""
    from hydra._internal.sources_registry import SourcesRegistry

    Plugins.instance()  # registers Hydra's own
    SourcesRegistry.instance().types[FileSource.scheme()] = FileSource


# --- the text ---------------------------------------------------------------------------------------------------------


def _text(path: str, name: str) -> str:
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        raise Mistake(f"{name}: cannot be read: {error.strerror}") from None
    if content.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in content[:4]:
        raise Mistake(f"{name}, line 1: is not UTF-8; save it as UTF-8 (this looks like UTF-16)")
    if content.startswith(b"\xef\xbb\xbf"):
        raise Mistake(f"{name}, line 1: begins with a byte order mark; save it as UTF-8 without one")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        byte = content[error.start]
        raise Mistake(f"{name}, line {line}: the byte 0x{byte:02x} is not UTF-8; save the file as UTF-8") from None


def _parsed(text: str, name: str, group: str, option: str) -> tuple[ConfigFile, dict[str, Any], str | None]:
    """The file, its values, and the package that its first lines name."""
    package = _package(text, name, group)
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is None:
            root = yaml.MappingNode("tag:yaml.org,2002:map", [])
        if not isinstance(root, yaml.MappingNode):
            raise Mistake(f"{name}, line {_line(root)}: must be keys with values, as in batch: 4")
        prefix = {None: group.replace("/", "."), "_group_": group.replace("/", "."), "_global_": ""}.get(
            package, package
        )
        file = ConfigFile(name=name, group=group, option=option, package=prefix or "", root=root)
        _check_repeated(file)
        _as_typed(file)
        _check_keys(file, root)
        _check_shape(file)
        values: dict[str, Any] = loader.construct_document(root)
    except yaml.YAMLError as error:
        raise Mistake(f"{name}{_explained(error, text)}") from None
    except RecursionError:
        raise Mistake(f"{name}: has too many lists or keys inside each other") from None
    return file, values, package


def _package(text: str, name: str, group: str) -> str | None:
    """The package that a comment before the first key names. Raises Mistake if an experiment has another than its own.

    Hydra ignores the line if another comment stands before it, and then puts an experiment's keys below `experiment`.
    """
    package, at, in_header = None, 1, True
    for number, line in enumerate(text.splitlines(), 1):
        in_header = in_header and (not line.strip() or line.lstrip().startswith("#"))
        if re.match(r"\s*#\s*@\s*package\b|\s*#\s*package:?\s+_global_", line, re.IGNORECASE):
            found = re.fullmatch(r"\s*#\s*@package\s+(\S+)\s*", line)
            if found is None:
                raise Mistake(f"{name}, line {number}: {line.strip()}: write {_package_line(group)}")
            if not in_header:
                raise Mistake(f"{name}, line {number}: {line.strip()}: must be the first line of the file")
            package, at = found[1], number
            break
    if group.split("/")[0] == "experiment" and package != "_global_":
        if package is not None:
            raise Mistake(f"{name}, line {at}: # @package {package}: an experiment begins with {PACKAGE_LINE}")
        raise Mistake(f"{name}, line 1: an experiment begins with the line {PACKAGE_LINE}; write it above this one")
    return package


def _package_line(group: str) -> str:
    return PACKAGE_LINE if group == "experiment" else f"# @package {group or '_global_'}, or leave the line out"


def _explained(error: yaml.YAMLError, text: str) -> str:
    """`, line 3: what is wrong` of an error of PyYAML."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:  # a character that YAML does not allow
        at = getattr(error, "position", 0)
        what = f"the character {chr(error.character)!r} is not allowed" if hasattr(error, "character") else str(error)
        return f", line {text.count(chr(10), 0, at) + 1}: {what}"
    line = [*text.splitlines(), ""][min(mark.line, len(text.splitlines()))]
    problem = str(getattr(error, "problem", None) or error)
    where = f", line {mark.line + 1}: "
    if line[: mark.column + 1].strip(" \t") != line[: mark.column + 1].strip(" ") or "'\\t'" in problem:
        return where + "a tab; YAML is indented with spaces"
    if problem.startswith("found duplicate key"):
        return where + f"{problem.removeprefix('found duplicate key ')} is given twice; keep one"
    if problem == "but found another document":
        return where + "a second document begins; keep one, without ---"
    opened = getattr(error, "context_mark", None)
    began = f", which began on line {opened.line + 1}" if opened is not None and opened.line != mark.line else ""
    context = str(getattr(error, "context", None) or "").removeprefix("while ")
    doing = f" ({context}{began})" if context else ""
    hint = f"; put the value in quotes, as in {line.strip()[:20]!r}" if "that cannot start any token" in problem else ""
    return where + f"cannot be read as YAML: {problem}{doing}{hint}"


# --- the nodes --------------------------------------------------------------------------------------------------------


def _items(node: yaml.MappingNode) -> Iterator[tuple[str, yaml.Node]]:
    """Keys and values, without those that `<<` merges: they stand elsewhere in the file."""
    for key, value in node.value:
        if not str(key.tag).endswith(":merge"):
            yield str(key.value), value


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1 if node.start_mark else 1


def _value(node: yaml.Node) -> Any:
    """The value of a node. Its mistakes are reported elsewhere."""
    loader = _Loader("")
    try:
        return loader.construct_document(node)
    except yaml.YAMLError:
        return str(node.value)


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and str(node.tag).endswith(":null")


def _follows(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and "${" in node.value


def _lines_of_key(key: str, node: yaml.Node) -> Iterator[tuple[str, Any, int]]:
    yield key, _value(node), _line(node)
    if isinstance(node, yaml.MappingNode):
        for inner, value in _items(node):
            yield from _lines_of_key(f"{key}.{inner}", value)


def _lines_of_values(key: str, node: yaml.Node) -> Iterator[tuple[str, Any, int]]:
    yield key, _value(node), _line(node)
    for each in node.value if isinstance(node, yaml.SequenceNode) else ():
        yield key, _value(each), _line(each)


def _lines_of_defaults(of_file: str, node: yaml.Node) -> Iterator[tuple[str, Any, int]]:
    """The option of each group that the file chooses. `of_file`: its own group."""
    for each in node.value if isinstance(node, yaml.SequenceNode) else ():
        if isinstance(each, yaml.ScalarNode):
            yield of_file, each.value, _line(each)
        for group, option in _items(each) if isinstance(each, yaml.MappingNode) else ():
            yield _group(group), _value(option), _line(each)


def _chosen(file: ConfigFile) -> Iterator[tuple[str, Any, int]]:
    """The options that the file's own defaults choose."""
    for key, node in _items(file.root):
        if key == "defaults":
            yield from _lines_of_defaults(file.group, node)


def _group(entry: str) -> str:
    """The group in an entry of a defaults list: `override /model` is `model`."""
    return re.sub(r"^(override|optional)\s+", "", entry).partition("@")[0].strip("/ ")


def _check_repeated(file: ConfigFile) -> None:
    """Raises Mistake for an alias inside its own anchor, and for aliases that repeat too many values."""
    sizes: dict[int, int | None] = {}  # by node; None: it is being counted

    def size(node: yaml.Node) -> int:
        if id(node) in sizes:
            known = sizes[id(node)]
            if known is None:
                raise file.mistake(_line(node), "an alias (*) repeats what it is itself a part of")
            return known
        sizes[id(node)] = None
        inner: Sequence[Any] = node.value if not isinstance(node, yaml.ScalarNode) else ()
        total = 1 + sum(size(part) for each in inner for part in (each if isinstance(each, tuple) else (each,)))
        sizes[id(node)] = total
        return total

    if size(file.root) > len(sizes) + MOST_REPEATED:
        raise file.mistake(1, f"aliases (*) repeat more than {MOST_REPEATED} values; write those that are needed")


def _check_keys(file: ConfigFile, node: yaml.Node) -> None:
    """Raises Mistake for a key that is no word, a tag, and a number that YAML reads otherwise than a person."""
    if node.tag not in TAGS:
        tag = str(node.tag).replace("tag:yaml.org,2002:", "!!")
        raise file.mistake(_line(node), f"the tag {tag} is not read here; write the value without it")
    if isinstance(node, yaml.ScalarNode):
        number = re.fullmatch(r"[-+]?(0[0-7_]+|[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?)", node.value)
        if number and str(node.tag).endswith((":int", ":float")):
            octal = ":" not in node.value
            instead = (node.value.lstrip("+-0") or "0") if octal else typed(_value(node))
            how = f"YAML reads it as {typed(_value(node))}; write {instead}, or '{node.value}' for the text"
            raise file.mistake(_line(node), f"{node.value}: {how}")
        return
    for each in node.value:
        key, value = each if isinstance(each, tuple) else (None, each)
        is_word = isinstance(key, yaml.ScalarNode) and str(key.tag).endswith((":str", ":int", ":merge"))
        if key is not None and not is_word:
            raise file.mistake(_line(key), "a key must be a word")
        _check_keys(file, value)


def _check_shape(file: ConfigFile) -> None:
    """Raises Mistake for a key of the whole configuration that has a value of another kind."""
    both = [node for key, node in file.root.value if not file.package and key.value in ("grid", "points")]
    if len(both) > 1:
        text = "the experiment has both grid: and points:; keep one, and type the other keys"
        raise file.mistake(_line(both[1]), text)
    _check_given_once(file)
    for key, node in _items(file.root):
        if key == "defaults":
            _check_defaults(file, node)
        elif file.package:
            continue
        elif key not in TYPES and key != "hydra":
            raise file.mistake(_line_of(file.root, key), _unknown(key, node))
        elif key == "grid":
            _check_grid(file, node)
        elif key == "points":
            _check_points(file, node)
        elif TYPES.get(key, "").startswith("dict"):
            _check_mapping(file, key, node)
        elif key in TYPES and (key in POINT_KEYS or TYPES[key] != "Any"):
            _check_value(file, key, node)


def _unknown(key: str, node: yaml.Node) -> str:
    """The message for a key that the configuration does not have, with the value that the file gives it."""
    if key.lower() in GRIDS:
        return f"no such key: {key}; write {GRID}"
    root, _, rest = key.partition(".")
    if rest and root in TYPES:
        return f"no such key: {key}; " + in_yaml(f"write {key}={typed(_value(node))}")
    return in_yaml(no_such_key(key, "VALUE" if isinstance(node, yaml.MappingNode) else typed(_value(node))))


def _line_of(node: yaml.MappingNode, key: str) -> int:
    """The line of a key, which is above that of its value if that is a mapping."""
    return next(_line(each) for each, _ in node.value if each.value == key)


def _check_given_once(file: ConfigFile) -> None:
    """Raises Mistake for a key with a value that no point has: all of them have another one by grid: or points:."""
    top = {} if file.package else dict(_items(file.root))
    points = [point for point in getattr(top.get("points"), "value", ()) if isinstance(point, yaml.MappingNode)]
    swept = {
        "grid": {key for key, _ in _items(top["grid"])} if isinstance(top.get("grid"), yaml.MappingNode) else set()
    }
    swept["points"] = set.intersection(*({key for key, _ in _items(point)} for point in points)) if points else set()
    for key, node in top.items():
        if key in (*swept, "defaults"):
            continue
        for inner, value, line in _lines_of_key(key, node):
            where = next((where for where, keys in swept.items() if inner in keys), None)
            if where is not None:
                raise file.mistake(line, f"{inner}={typed(value)}: is given again under {where}:; keep one")


def _check_value(file: ConfigFile, key: str, node: yaml.Node) -> None:
    if isinstance(node, yaml.SequenceNode) and key in POINT_KEYS:
        values = _value(node)
        raise file.mistake(
            _line(node), f"{key}={typed(values)}: takes one value; write {several(key, values)} to try each"
        )
    is_number = isinstance(node, yaml.ScalarNode) and str(node.tag).endswith((":int", ":float"))
    if TYPES[key] == "bool" and is_number:
        raise file.mistake(_line(node), f"{key}={node.value}: must be {expected_type(key)}")
    if not isinstance(node, yaml.ScalarNode):
        if TYPES[key] == "Any":
            return
        raise file.mistake(_line(node), f"{key}={typed(_value(node))}: must be {expected_type(key)}")
    if key in POINT_KEYS and not _follows(node) and SEVERAL.search(node.value):
        raise file.mistake(
            _line(node), f"{key}={node.value}: takes one value; write grid: {{{key}: '{node.value}'}} to try several"
        )
    if node.value == "???":
        raise file.mistake(_line(node), f"{key}=???: give it a value")


def several(key: str, values: Any) -> str:
    """`grid: {batch: [1, 2]}`, as a file has it."""
    return f"grid: {{{key}: [{', '.join(map(typed, values))}]}}"


def _check_mapping(file: ConfigFile, key: str, node: yaml.Node) -> None:
    names = file.group.startswith("experiment") and key in OF_POINTS and isinstance(node, yaml.MappingNode)
    name = dict(_items(node)).get("name") if names else None
    if name is not None and (key, _value(name)) not in [(group, option) for group, option, _ in _chosen(file)]:
        option = typed(_value(name))
        how = f"choose an option as in defaults: [override /{key}: {option}]"
        raise file.mistake(_line(name), f"{key}.name={option}: {how}")
    if isinstance(node, yaml.MappingNode) or _follows(node):
        return
    value = typed(_value(node))
    if key in GROUPS and not isinstance(node, yaml.SequenceNode) and not _is_null(node):
        options = [each.strip() for each in value.split(",")]
        if len(options) > 1 and key != "design":
            raise file.mistake(_line(node), f"{key}={value}: write {several(key, options)} to try each")
        raise file.mistake(_line(node), f"{key}={value}: choose an option as in defaults: [override /{key}: {value}]")
    if key in GROUPS and isinstance(node, yaml.SequenceNode) and key != "design":
        raise file.mistake(_line(node), f"{key}={value}: write {several(key, _value(node))} to try each")
    raise file.mistake(_line(node), f"{key}={value}: must be keys with values")


def _check_grid(file: ConfigFile, node: yaml.Node) -> None:
    if _is_null(node) or not node.value:
        raise file.mistake(_line(node), f"grid: is empty, so there is nothing to try; write {GRID}, or leave it out")
    if not isinstance(node, yaml.MappingNode):
        raise file.mistake(_line(node), f"grid: must be keys with lists of values, as in {GRID}")
    for key, values in _items(node):
        if key.partition(".")[0] not in (*TYPES, "experiment"):
            raise file.mistake(_line(values), _unknown(key, values))
        if isinstance(values, yaml.MappingNode) and values.value:
            inner, first = next(_items(values))
            raise file.mistake(
                _line(values), f"grid: {key}: write the whole key, as in {key}.{inner}: {_as_list(first)}"
            )
        if _is_null(values) or not isinstance(values, (yaml.SequenceNode, yaml.ScalarNode)) or not values.value:
            raise file.mistake(_line(values), f"grid: {key}: must be a list of values, as in {key}: [1, 2, 4]")


def _as_list(node: yaml.Node) -> str:
    value = _value(node)
    return "[" + ", ".join(map(typed, value if isinstance(value, list) else [value])) + "]"


def _check_points(file: ConfigFile, node: yaml.Node) -> None:
    if _is_null(node) or not node.value:
        raise file.mistake(
            _line(node), f"points: is empty, so there is nothing to try; write {POINTS}, or leave it out"
        )
    if not isinstance(node, yaml.SequenceNode):
        raise file.mistake(_line(node), f"points: must be a list of keys with values, as in {POINTS}")
    for point in node.value:
        if not isinstance(point, yaml.MappingNode) or not point.value:
            text = f"points: {typed(_value(point))}: must be keys and values, as in {{batch: 1, model.width: 64}}"
            raise file.mistake(_line(point), text)
        for key, value in _items(point):
            if TYPES.get(key) is not None and isinstance(value, yaml.SequenceNode):
                text = f"points: {key}={typed(_value(value))}: takes one value; list a point for each"
                raise file.mistake(_line(value), text)
            if key in GROUPS and isinstance(value, yaml.MappingNode) and value.value:
                inner, first = next(_items(value))
                text = f"points: {key}: write the whole key, as in {key}.{inner}: {typed(_value(first))}"
                raise file.mistake(_line(value), text)


def _check_defaults(file: ConfigFile, node: yaml.Node) -> None:
    example = "defaults: [override /model: gpt2]"
    if not isinstance(node, yaml.SequenceNode):
        raise file.mistake(_line(node), f"defaults: must be a list, as in {example}")
    for each in node.value:
        entries = list(_items(each)) if isinstance(each, yaml.MappingNode) else [(str(each.value), each)]
        is_word = isinstance(each, yaml.ScalarNode) and str(each.tag).endswith(":str")
        if len(entries) != 1 or not (is_word or isinstance(each, yaml.MappingNode)):
            value = typed(_value(each))
            raise file.mistake(_line(each), f"defaults: {value}: must be one option each, as in {example}")
        ((entry, option),) = entries
        if not isinstance(each, yaml.MappingNode):
            if entry == file.option:
                raise file.mistake(_line(each), f"defaults: {entry}: a file cannot include itself")
            continue
        group = _group(entry)
        chosen = typed(_value(option))
        if group in GROUPS and file.group == "experiment" and not re.match(r"override\s+/", entry):
            raise file.mistake(_line(each), f"defaults: {entry}: {chosen}: write override /{group}: {chosen}")
        if group not in GROUPS and not group.startswith("hydra/") and re.match(r"override\s", entry):
            near = did_you_mean(group, GROUPS) or f"; there are {', '.join(GROUPS)}"
            raise file.mistake(_line(each), f"defaults: {entry}: {chosen}: no such group{near}")


def _as_typed(file: ConfigFile) -> None:
    """Read values as a command line does: in a key that takes text, `no` is not false, and `context: 4k` is 4096."""

    def keep(node: yaml.Node) -> None:
        if isinstance(node, yaml.SequenceNode):
            for each in node.value:
                keep(each)
        elif isinstance(node, yaml.ScalarNode) and str(node.tag).endswith((":int", ":float", ":bool")):
            node.tag = "tag:yaml.org,2002:str"

    def take_units(key: str, node: yaml.Node) -> None:
        if isinstance(node, yaml.ScalarNode) and str(node.tag).endswith(":str"):
            number = value_in_units(key, node.value)
            if not isinstance(number, str):
                node.value, node.tag = typed(number), f"tag:yaml.org,2002:{type(number).__name__}"

    def visit(key: str, node: yaml.Node) -> None:
        if isinstance(node, yaml.MappingNode):
            for inner, value in _items(node):
                visit(f"{key}.{inner}".lstrip("."), value)
        elif key in TEXT_KEYS or re.fullmatch(r"env\.[^.]+|workload\.argv", key):
            keep(node)
        else:
            for each in node.value if isinstance(node, yaml.SequenceNode) else [node]:
                take_units(key, each)

    for key, node in _items(file.root):
        if not file.package and key == "grid" and isinstance(node, yaml.MappingNode):
            visit("", node)
        elif not file.package and key == "points" and isinstance(node, yaml.SequenceNode):
            for point in node.value:
                visit("", point)
        elif key != "defaults":
            visit(f"{file.package}.{key}".lstrip("."), node)


# --- where a mistake is -----------------------------------------------------------------------------------------------

# How a mistake begins: the file, as a composition names it; then the key and its value, or a key that is missing or
# does not exist.
_BEGINNING = re.compile(
    r"(?:(?:in )?(?P<file>\S.*?)\.yaml: )?(?P<swept>(?:grid|points): )?"
    r"(?:no such key: (?P<unknown>[^\s;]+)|(?P<key>[\w./-]+)(?:=(?P<value>.*?)| is missing)?: )"
)


def located(mistake: str, files: Sequence[ConfigFile], given: Mapping[str, Sequence[Any]]) -> str:
    """The message of a mistake with the file and the line of its key, unless the value is the command line's.

    `given`: the keys of the command line with their values.
    """
    begins = _BEGINNING.match(mistake)
    key = (begins["unknown"] or begins["key"]) if begins else None
    if begins is None or key is None:
        return mistake
    if key in given and not begins["swept"] and begins["value"] in (None, *map(typed, given[key])):
        return mistake
    named = [each for each in files if begins["file"] in (None, os.path.join(each.group, each.option))]
    message = mistake[begins.start("file") + len(begins["file"] + ".yaml: ") :] if begins["file"] else mistake
    found = [
        (file, value, line)
        for file in named
        for each, value, line in file.lines()
        if each in (key, f"{file.package}.{key}" if begins["file"] else key)
    ]
    if found:
        alike = [each for each in found if begins["value"] in (typed(each[1]), str(each[1]))]
        file, _, line = (alike or found)[-1]
        return f"{file.name}, line {line}: {in_yaml(message)}"
    return f"{named[0].name}: {message}" if begins["file"] and named else mistake
