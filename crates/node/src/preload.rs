//! The preload library, and the programs that can load it.
//!
//! Input: a program's file. Output: its path, or the reason that the dynamic loader would ignore the library. Invariant: a
//! program that passes loads the library, so that nothing happens silently without it.

use object::elf::{EM_X86_64, PT_INTERP};
use object::read::elf::{ElfFile64, FileHeader as _, ProgramHeader as _};
use object::{Endianness, Object as _, ObjectSymbol as _};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// The file name of the library.
const LIBRARY_NAME: &str = "libheadwater_preload.so";
/// Interpreters of scripts that call each other, as the kernel allows them.
const SCRIPTS_MAX: usize = 5;
/// The most bytes of the first line of a script.
const SCRIPT_LINE_MAX: usize = 256;
/// Functions of the library that a program may have itself.
const MEMORY_FUNCTIONS: [&str; 6] = ["memcpy", "memmove", "memset", "memcmp", "pread64", "pwrite64"];
/// The bits of a file's mode that give a program the rights of its file's owner or group.
const SET_UID: u32 = 0o4000;
const SET_GID: u32 = 0o2000;

/// The reason that a program cannot be run with the library.
#[derive(Debug, Error)]
pub enum PreloadError {
    /// There is no library.
    #[error(
        "the library {LIBRARY_NAME} is not beside this program ({searched}): build it with `cargo build --release --package \
         headwater-preload`, or name it by --library"
    )]
    NoLibrary {
        /// The paths at which it was looked for.
        searched: String,
    },
    /// The library's file is something else.
    #[error("{path} is not the preload library: {reason}; name another one by --library")]
    NotTheLibrary {
        /// The path.
        path: PathBuf,
        /// The fault of the file.
        reason: String,
    },
    /// The dynamic loader takes spaces and colons as separators.
    #[error(
        "the path {path} of the library has a space or a colon, which LD_PRELOAD cannot hold: move the library"
    )]
    Separator {
        /// The path.
        path: PathBuf,
    },
    /// There is no such program.
    #[error("the program `{name}` was not found in PATH; name it with its folder")]
    NoProgram {
        /// The name.
        name: String,
    },
    /// A file could not be read.
    #[error("{path} cannot be read: {error}")]
    Unreadable {
        /// The path.
        path: PathBuf,
        /// The kernel's error.
        error: io::Error,
    },
    /// The program would run without the library.
    #[error("{path} would run without the library: {reason}")]
    Ignored {
        /// The path of the program, or of the interpreter of a script.
        path: PathBuf,
        /// The reason, and the way out if there is one.
        reason: &'static str,
    },
}

/// Returns the path of the library: the named one, else the one beside this program or in the `lib` folder beside its folder.
///
/// # Errors
/// [`PreloadError`] if there is none, or if the named file is something else.
pub fn find_library(named: Option<PathBuf>) -> Result<PathBuf, PreloadError> {
    let candidates = named.map_or_else(library_places, |path| vec![path]);
    let Some(path) = candidates.iter().find(|path| path.exists()) else {
        let searched: Vec<String> = candidates.iter().map(|path| path.display().to_string()).collect();
        return Err(PreloadError::NoLibrary { searched: searched.join(", ") });
    };
    let path = path.canonicalize().map_err(|error| PreloadError::Unreadable { path: path.clone(), error })?;
    let not_it = |reason: String| PreloadError::NotTheLibrary { path: path.clone(), reason };
    let bytes = read(&path)?;
    let elf = ElfFile64::<Endianness>::parse(&*bytes).map_err(|error| not_it(error.to_string()))?;
    if !defined_symbols(&elf).iter().any(|name| name == "memcpy") {
        return Err(not_it("it has no function `memcpy`".to_owned()));
    }
    if path.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b' ' | b':')) {
        return Err(PreloadError::Separator { path });
    }
    Ok(path)
}

fn library_places() -> Vec<PathBuf> {
    let own = std::env::current_exe().ok();
    let folder = own.as_deref().and_then(Path::parent);
    let installed = folder.and_then(Path::parent).map(|prefix| prefix.join("lib"));
    let folders = folder.map(Path::to_path_buf).into_iter().chain(installed);
    folders.map(|folder| folder.join(LIBRARY_NAME)).collect()
}

/// Returns the value of `LD_PRELOAD`: the library before those that the caller names.
#[must_use]
pub fn preload_value(library: &Path, before: Option<OsString>) -> OsString {
    let mut value = library.as_os_str().to_owned();
    if let Some(before) = before.filter(|before| !before.is_empty()) {
        value.push(" ");
        value.push(before);
    }
    value
}

/// Returns the path of a program, as a shell finds it.
///
/// # Errors
/// [`PreloadError::NoProgram`].
pub fn find_program(name: &OsStr) -> Result<PathBuf, PreloadError> {
    let is_program = |path: &PathBuf| {
        path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    let candidates: Vec<PathBuf> = if name.as_bytes().contains(&b'/') {
        vec![PathBuf::from(name)]
    } else {
        let folders = std::env::var_os("PATH").unwrap_or_default();
        // An empty folder is the current one; a name without a folder would be looked for in PATH again.
        std::env::split_paths(&folders).map(|folder| Path::new(".").join(folder).join(name)).collect()
    };
    let found = candidates.into_iter().find(is_program);
    found.ok_or_else(|| PreloadError::NoProgram { name: name.to_string_lossy().into_owned() })
}

/// Checks that the dynamic loader will load the library into a program, or into the interpreter of a script. Returns the
/// functions of the library that the program has itself.
///
/// # Errors
/// [`PreloadError::Ignored`] with the reason, or [`PreloadError::Unreadable`].
pub fn validate_program(path: &Path) -> Result<Vec<&'static str>, PreloadError> {
    let mut path = path.to_path_buf();
    for _ in 0..SCRIPTS_MAX {
        let bytes = read(&path)?;
        match interpreter_of_script(&bytes) {
            Some(interpreter) => path = interpreter,
            None => return validate_elf(&path, &bytes),
        }
    }
    Err(PreloadError::Ignored { path, reason: "it is a script whose interpreters are scripts" })
}

fn validate_elf(path: &Path, bytes: &[u8]) -> Result<Vec<&'static str>, PreloadError> {
    let ignored = |reason| Err(PreloadError::Ignored { path: path.to_path_buf(), reason });
    if has_other_rights(path)? {
        return ignored(
            "it is set-uid, set-gid or has capabilities, so that the loader ignores LD_PRELOAD; run it as its owner, or a copy",
        );
    }
    let Ok(elf) = ElfFile64::<Endianness>::parse(bytes) else {
        return ignored("it is not a program for 64-bit machines");
    };
    let endian = elf.endian();
    if elf.elf_header().e_machine(endian) != EM_X86_64 {
        return ignored("it is a program for another machine than x86-64");
    }
    let loader = elf.elf_program_headers().iter().find(|header| header.p_type(endian) == PT_INTERP);
    let Some(loader) = loader else {
        return ignored("it is linked statically, so that no loader runs; link it dynamically");
    };
    let loader = loader.data(endian, bytes).unwrap_or_default();
    if !loader.windows(8).any(|part| part == b"ld-linux") {
        return ignored("its loader is not that of the GNU C library, which the library needs");
    }
    let own = defined_symbols(&elf);
    Ok(MEMORY_FUNCTIONS.into_iter().filter(|name| own.iter().any(|own| own == name)).collect())
}

/// Returns the names of the functions that a program or a library exports.
fn defined_symbols(elf: &ElfFile64<'_>) -> Vec<String> {
    let defined = elf.dynamic_symbols().filter(|symbol| symbol.is_definition());
    defined.filter_map(|symbol| symbol.name().ok().map(str::to_owned)).collect()
}

/// Returns true if the program gets rights that its caller does not have.
fn has_other_rights(path: &Path) -> Result<bool, PreloadError> {
    let unreadable = |error| PreloadError::Unreadable { path: path.to_path_buf(), error };
    let file = path.metadata().map_err(unreadable)?;
    let user = rustix::process::geteuid();
    let changes_user = file.mode() & SET_UID != 0 && file.uid() != user.as_raw();
    let changes_group = file.mode() & SET_GID != 0 && file.gid() != rustix::process::getegid().as_raw();
    let mut capabilities = [0_u8; 64];
    let has_capabilities =
        !user.is_root() && rustix::fs::getxattr(path, c"security.capability", &mut capabilities[..]).is_ok();
    Ok(changes_user || changes_group || has_capabilities)
}

fn interpreter_of_script(bytes: &[u8]) -> Option<PathBuf> {
    let line = bytes.strip_prefix(b"#!")?;
    let line = line.split(|byte| *byte == b'\n').next()?;
    let line = &line[..line.len().min(SCRIPT_LINE_MAX)];
    let mut words = line.split(|byte| matches!(byte, b' ' | b'\t')).filter(|word| !word.is_empty());
    let interpreter = PathBuf::from(OsStr::from_bytes(words.next()?));
    // `env` becomes the interpreter that it finds.
    if interpreter.file_name() == Some(OsStr::new("env")) {
        let name = words.find(|word| !word.starts_with(b"-") && !word.contains(&b'='))?;
        return find_program(OsStr::from_bytes(name)).ok();
    }
    Some(interpreter)
}

fn read(path: &Path) -> Result<Vec<u8>, PreloadError> {
    std::fs::read(path).map_err(|error| PreloadError::Unreadable { path: path.to_path_buf(), error })
}
