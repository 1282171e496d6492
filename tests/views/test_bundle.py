"""The bundler: modules follow what they import, names are checked, and what is not understood is refused in words."""

import re
import shutil
import subprocess

import pytest

from specviz.views.bundle import bundle, web_file

PAGES = ("page.js", "run_file.js", "site.js", "report_file.js", "live_file.js", "live/worker.js")


def write(folder, **sources):
    """Modules by name, each a source; gives the path of `entry`."""
    for name, source in sources.items():
        (folder / f"{name}.js").write_text(source, "utf-8")
    return folder / "entry.js"


def test_a_module_stands_once_and_after_what_it_imports_with_its_sheet(tmp_path):
    entry = write(
        tmp_path,
        entry="import { b } from './b.js';\nimport { a } from './a.js';\nuse(a, b);\n",
        b="import { a as other } from './a.js';\nexport const b = other;\n",
        a="export const a = 'once';\n",
    )
    (tmp_path / "entry.css").write_text(".entry {}", "utf-8")
    (tmp_path / "a.css").write_text(".a {}", "utf-8")
    made = bundle(entry)
    assert made.script.count("'once'") == 1
    assert made.script.index("'once'") < made.script.index("const b = other") < made.script.index("use(a, b)")
    assert made.sheet == ".a {}.entry {}"


def test_comments_are_for_readers_and_for_the_checker_and_no_page_has_them(tmp_path):
    comments = (
        "/** @import { B } from './b.d.ts' */\n/**\n * @param {B} b the one\n */\n  /** @type {B} */\n  // words\n"
    )
    code = "/** @type {B} */ (one).two = 1; /** @type {B} */\nconst text = `\n * three */\n`; // four\n"
    script = bundle(write(tmp_path, entry=f"{comments}{code}{comments}five();\n")).script
    assert f"{code}five();\n" in script
    assert "@import" not in script
    assert "words" not in script


@pytest.mark.parametrize("source", ["export{x as a,y as b};", "export { x as a, y as b }\n"])
def test_exports_that_stand_at_the_end_as_minified_code_has_them_are_read(tmp_path, source):
    entry = write(tmp_path, entry="import { b } from './a.js';\nb();\n", a=f"const x = 1, y = 2;{source}")
    assert "return { a: x, b: y };" in bundle(entry).script


@pytest.mark.parametrize(
    ("sources", "words"),
    [
        ({"entry": "import { a } from './a.js';\n", "a": "import { b } from './entry.js';\n"}, "in a circle .*entry"),
        ({"entry": "import { a } from './a.js';\n"}, "a file that exists .got a.js, imported by entry.js"),
        ({"entry": "import { b } from './a.js';\n", "a": "export const a = 1;\n"}, r"imports \['b'\] from ./a.js"),
        ({"entry": "import a from './a.js';\n", "a": ""}, "only named imports"),
        ({"entry": "import { a } from 'package';\n"}, "only named imports"),
        ({"entry": "import { a } from 'https://example.org/a.js';\n"}, "only named imports"),
        ({"entry": "export default 1;\n"}, "only named imports"),
        ({"entry": "export let a = 1;\n"}, "only named imports"),
    ],
)
def test_what_cannot_be_followed_is_refused_in_words(tmp_path, sources, words):
    with pytest.raises(ValueError, match=words):
        bundle(write(tmp_path, **sources))


@pytest.mark.parametrize("name", PAGES)
def test_every_page_is_one_script_that_closes_no_tag(name, tmp_path):
    made = bundle(web_file(name))
    assert "</script" not in made.script.lower()
    assert "</style" not in made.sheet.lower()
    if made.sheet:  # a worker has none
        assert made.sheet.startswith(web_file("core/element.css").read_text("utf-8")), "others build on it"
    if node := shutil.which("node"):
        path = tmp_path / "page.js"
        path.write_text(made.script, "utf-8")
        subprocess.run([node, "--check", path], check=True)


def test_no_module_lies_there_that_no_page_needs():
    needed = "".join(bundle(web_file(name)).script for name in PAGES)
    longest = {path.name: longest_line(path.read_text("utf-8")) for path in web_file("").rglob("*.js")}
    assert [name for name, line in longest.items() if line not in needed] == []


def longest_line(source):
    """Of a module's code: it stands in no other module."""
    lines = [line for line in source.split("\n") if not re.match(r" *(//|/?\*|import |export )", line)]
    return max(lines, key=len).split("export")[0]
