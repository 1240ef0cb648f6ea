"""What the book needs beside mkdocs: links that leave docs/, and the decisions in the navigation."""

import pathlib
import re

from mkdocs.exceptions import PluginError

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
OUTSIDE = re.compile(r"\]\((?P<path>\.\.?/[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")
RUST = re.compile(r"^```rust\S*\n(?P<program>.*?)^```$", re.MULTILINE | re.DOTALL)
# Rust's doctests hide these lines from readers.
HIDDEN = re.compile(r"^#(?: .*)?\n", re.MULTILINE)


def on_config(config):
    """Decisions stand in the navigation by number and title."""
    folder = REPOSITORY / "docs" / "decisions"
    pages = sorted(page.name for page in folder.glob("*.md"))
    config.nav.append({"Decisions": [f"decisions/{page}" for page in pages]})
    return config


def on_page_markdown(markdown, page, config, files):
    """Links out of docs/ lead to the repository; one to nothing ends the build."""
    folder = (REPOSITORY / "docs" / page.file.src_uri).parent

    def outside(link):
        target = (folder / link["path"]).resolve()
        if not target.exists():
            raise PluginError(f"{page.file.src_uri} links to {link['path']}, which is not there")
        if target.is_relative_to(REPOSITORY / "docs"):
            return link[0]
        kind = "tree" if target.is_dir() else "blob"
        path = target.relative_to(REPOSITORY)
        return f"]({config.repo_url}/{kind}/main/{path}{link['anchor'] or ''})"

    def shown(block):
        return f"```rust\n{HIDDEN.sub('', block['program'])}```"

    markdown = RUST.sub(shown, markdown)
    return OUTSIDE.sub(outside, markdown)
