//! Programs in C and C++, compiled by the system's compiler with warnings as errors, and linked with the libraries.

mod said;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

pub(crate) use self::said::said;

const STRICT: [&str; 5] = ["-O1", "-Wall", "-Wextra", "-Wpedantic", "-Werror"];

#[derive(Clone, Copy)]
pub(crate) struct Program {
    pub(crate) source: &'static str,
    pub(crate) compiler: &'static str,
    pub(crate) standard: &'static str,
    pub(crate) under_valgrind: bool,
    pub(crate) arguments: &'static [&'static str],
}

impl Program {
    pub(crate) const fn c(source: &'static str, under_valgrind: bool) -> Self {
        Self { source, compiler: "cc", standard: "-std=c11", under_valgrind, arguments: &[] }
    }
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Linked {
    Shared,
    Static,
}

/// Where the libraries are, and where programs go.
pub(crate) struct Places {
    libraries: PathBuf,
    programs: PathBuf,
}

impl Places {
    /// Builds the libraries: cargo does not for the tests of a package that no Rust program can link. Programs go to a
    /// folder of this name.
    pub(crate) fn new(name: &str) -> Result<Self, String> {
        let programs = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let target =
            Path::new(env!("CARGO_TARGET_TMPDIR")).parent().ok_or("no target directory")?;
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--package", "hugekit-c", "--target-dir"]).arg(target);
        said(&mut cargo)?;
        let libraries = target.join("debug");
        let _ = fs::remove_dir_all(&programs);
        fs::create_dir_all(&programs).map_err(|error| error.to_string())?;
        // The name that programs ask the dynamic linker for.
        symlink(libraries.join("libhugekit.so"), programs.join("libhugekit.so.0"))
            .map_err(|error| error.to_string())?;
        Ok(Self { libraries, programs })
    }

    /// A program in C that is given as text. Its file is in the folder of programs.
    pub(crate) fn compile_text(&self, name: &str, text: &str) -> Result<PathBuf, String> {
        let source = self.programs.join(format!("{name}.c"));
        fs::write(&source, text).map_err(|error| error.to_string())?;
        let source = source.into_os_string().into_string().map_err(|path| format!("{path:?}"))?;
        self.compile(Program::c(source.leak(), false), Linked::Shared)
    }

    pub(crate) fn compile(&self, program: Program, linked: Linked) -> Result<PathBuf, String> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        let suffix = if linked == Linked::Static { "-static" } else { "" };
        let path =
            self.programs.join(format!("{}{suffix}", program.source.replace(['.', '/'], "-")));
        let mut compiler = Command::new(program.compiler);
        compiler.args(STRICT).args([program.standard, "-pthread", "-g", "-I"]);
        compiler.arg(folder.join("include")).arg("-o").arg(&path);
        compiler.arg(folder.join("tests").join(program.source));
        match linked {
            Linked::Shared => compiler.arg("-L").arg(&self.libraries).arg("-lhugekit"),
            Linked::Static => {
                let library = self.libraries.join("libhugekit.a");
                compiler.arg(library).args(["-ldl", "-lm", "-lgcc_s"])
            }
        };
        if linked == Linked::Shared {
            compiler.arg(format!("-Wl,-rpath,{}", self.programs.display()));
        }
        said(&mut compiler)?;
        Ok(path)
    }

    /// A program in Go, which takes its linker's flags from the environment. Nothing is fetched.
    pub(crate) fn compile_go(&self, source: &str) -> Result<PathBuf, String> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        let path = self.programs.join(source.replace(['.', '/'], "-"));
        let (libraries, programs) = (self.libraries.display(), self.programs.display());
        let mut go = Command::new("go");
        go.args(["build", "-o"]).arg(&path).arg(folder.join("tests").join(source));
        go.env("CGO_ENABLED", "1").env("GOPROXY", "off").env("GO111MODULE", "off");
        go.env("GOCACHE", Path::new(env!("CARGO_TARGET_TMPDIR")).join("go-cache"));
        go.env("CGO_CFLAGS", format!("-I{}", folder.join("include").display()));
        go.env("CGO_LDFLAGS", format!("-L{libraries} -lhugekit -Wl,-rpath,{programs}"));
        said(&mut go)?;
        Ok(path)
    }
}
