"""Checks of all Markdown pages of the repository, and of the words of comments and messages. Prints each finding.

1. Each relative link leads to a file, and its anchor to a heading there.
2. Each block of Rust is in a page that a crate includes for its doc tests, and each of C in one that the tests of C name.
3. Each block of Python compiles.
4. A test that a page names by `cargo test -p CRATE --test TEST` exists.
5. No more texts than its `most` have a phrase of `phrases.toml`, and no documentation of the crates that it names begins
   with one of its words.
"""

import functools
import pathlib
import re
import subprocess
import sys
import textwrap
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[1]
C_TESTS = ROOT / "bindings/c/tests/c.rs"
BLOCK = re.compile(r"^ *```(?P<kind>\S*)\n(?P<text>.*?)^ *```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`]*`")
LINK = re.compile(r"\]\((?![a-z]+:)(?P<path>[^)#\s]*)(?:#(?P<anchor>[^)\s]*))?\)")
HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)
ONE_TEST = re.compile(r"cargo test -p (?P<package>\S+) --test (?P<test>[\w-]+)")
DOCUMENTATION = re.compile(r"^\s*//[/!] ?(.*)$")
PROGRAMS = [*(f"{wing}/*/src/*.rs" for wing in ("engine", "tools", "bindings", "proof")), "lab/src/*.rs", "xtask/src/*.rs"]
STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')


def files(*patterns):
    """Tracked files, and new ones that git does not ignore."""
    command = ["git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard", *patterns]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return [ROOT / name for name in names if (ROOT / name).exists()]


def without_code(text):
    """The text with as many lines, without blocks of code."""
    return BLOCK.sub(lambda block: "\n" * block[0].count("\n"), text)


def anchors(page):
    """The headings of a page as GitHub makes anchors of them."""
    found = []
    for heading in HEADING.findall(without_code(page.read_text())):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        anchor = re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")
        found.append(f"{anchor}-{found.count(anchor)}" if anchor in found else anchor)
    return found


def links(page):
    for link in LINK.finditer(without_code(page.read_text())):
        target = page.parent / link["path"] if link["path"] else page
        if not target.exists():
            yield f"links to {link['path']}, which is not there"
        elif link["anchor"] and target.suffix == ".md" and link["anchor"] not in anchors(target):
            yield f"links to {link['path']}#{link['anchor']}, which is no heading there"


def included():
    """Pages whose blocks of Rust are doc tests."""
    for source in files("*.rs"):
        for name in re.findall(r'doc = include_str!\("([^"]*\.md)"\)', source.read_text()):
            yield (source.parent / name).resolve()


def blocks(page, tested):
    for block in BLOCK.finditer(page.read_text()):
        if block["kind"].startswith("rust") and page.resolve() not in tested:
            yield "has Rust that is no doc test: include the page in a crate"
        if block["kind"] == "c" and f'"{page.relative_to(ROOT)}"' not in C_TESTS.read_text():
            yield f"has C that is not tested: name the page in {C_TESTS.relative_to(ROOT)}"
        if block["kind"] == "python":
            try:
                compile(textwrap.dedent(block["text"]), page.name, "exec")
            except SyntaxError as error:
                yield f"has Python that does not compile: {error}"


@functools.cache
def crates():
    """The folder of each package."""
    manifests = files("*Cargo.toml")
    return {tomllib.loads(file.read_text()).get("package", {}).get("name"): file.parent for file in manifests}


def commands(page):
    for command in ONE_TEST.finditer(page.read_text()):
        tests = crates()[command["package"]] / "tests"
        if not ((tests / command["test"]).with_suffix(".rs").exists() or (tests / command["test"] / "main.rs").exists()):
            yield f"names a test that is not there: {command[0]}"


def words(file):
    """Each line's number and words: prose of Markdown, documentation and strings of programs."""
    text = file.read_text()
    is_page = file.suffix == ".md"
    for number, line in enumerate((without_code(text) if is_page else text).splitlines(), 1):
        if is_page and line.startswith("#"):
            continue  # "What it costs" is a good heading.
        documentation = DOCUMENTATION.match(line)
        said = line if is_page else documentation[1] if documentation else " ".join(STRING.findall(line))
        yield number, CODE.sub("", said)


def phrases(sources, table):
    for file in sources:
        for number, line in words(file):
            for phrase in table:
                if re.search(phrase["pattern"], line, re.IGNORECASE):
                    yield file, f"{number}: \"{phrase['name']}\"; write {phrase['write']}: {line.strip()}"


def openings(sources, words):
    """Documentation comments that begin with one of the words."""
    for file in sources:
        before = ""
        for number, line in enumerate(file.read_text().splitlines(), 1):
            text = line.strip()
            if re.match(rf"/// ({words})\b", text) and not re.match(r"/// \S", before):
                yield file, f"{number}: begin with a verb or the name of the thing: {text}"
            before = text


def main():
    pages = files("*.md")
    tested = set(included())
    table = tomllib.loads((pathlib.Path(__file__).parent / "phrases.toml").read_text())
    findings = [(page, finding) for page in pages for finding in (*links(page), *blocks(page, tested), *commands(page))]
    programs = files(*PROGRAMS)
    for kind, sources in (("pages", pages), ("programs", programs)):
        found = list(phrases(sources, table["phrase"]))
        most = table["most"][kind]
        print(f"{kind}: {len(found)} phrases that phrases.toml names, of at most {most}")
        findings += found if len(found) > most or "--all" in sys.argv else []
    findings += openings(files(*table["openings"]["none_in"]), table["openings"]["words"])
    for file, finding in findings:
        print(f"{file.relative_to(ROOT)}: {finding}")
    return bool(findings)


if __name__ == "__main__":
    sys.exit(main())
