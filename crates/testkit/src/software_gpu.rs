//! A library that stands for the driver of a GPU: compiled by gcc, with faults.
//!
//! Input: lines of faults, which `c/software_cuda.c` explains. Output: the path of a library of its own for each call, so that
//! tests of one process have drivers apart. Invariant: a use of the driver that a real one would punish is an error of
//! [`SoftwareGpu::misuses`].

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The source of the library.
const SOURCE: &str = include_str!("../c/software_cuda.c");

/// A compiled library in a folder of its own. It may be used after this is dropped, as far as it was opened before.
#[derive(Debug)]
pub struct SoftwareGpu {
    folder: tempfile::TempDir,
}

impl SoftwareGpu {
    /// Compiles the library, with faults for its first use.
    ///
    /// # Panics
    /// gcc is missing or refuses the source.
    #[must_use]
    pub fn with_faults(faults: &str) -> Self {
        static COMPILED: OnceLock<Vec<u8>> = OnceLock::new();
        let compiled = COMPILED.get_or_init(|| std::fs::read(Self::compile(SOURCE).library()).unwrap());
        let made = Self { folder: tempfile::tempdir().unwrap() };
        std::fs::write(made.library(), compiled).unwrap();
        std::fs::write(made.beside("faults"), faults).unwrap();
        made
    }

    /// Compiles a library that lacks a function.
    ///
    /// # Panics
    /// As [`with_faults`](Self::with_faults).
    #[must_use]
    pub fn without_function(function: &str) -> Self {
        Self::compile(&SOURCE.replace(&format!("int {function}("), "int gone("))
    }

    fn compile(source: &str) -> Self {
        let made = Self { folder: tempfile::tempdir().unwrap() };
        let file = made.folder.path().join("software_cuda.c");
        std::fs::write(&file, source).unwrap();
        let mut gcc = Command::new("gcc");
        gcc.args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread"]);
        let compiled = gcc.arg(&file).arg("-o").arg(made.library()).arg("-ldl").output();
        let compiled = compiled.expect("gcc compiles the library of this test: install gcc");
        assert!(compiled.status.success(), "{gcc:?}\n{}", String::from_utf8_lossy(&compiled.stderr));
        made
    }

    /// Returns the path of the library.
    #[must_use]
    pub fn library(&self) -> PathBuf {
        self.folder.path().join("libcuda.so.1")
    }

    fn beside(&self, ending: &str) -> PathBuf {
        let name = format!("libcuda.so.1.{ending}");
        Path::new(self.folder.path()).join(name)
    }

    /// Returns the lines that the library wrote.
    #[must_use]
    pub fn log(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.beside("log")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Returns the lines about uses that a real driver would punish, ranges that were left registered among them.
    #[must_use]
    pub fn misuses(&self) -> Vec<String> {
        let is_fine =
            |line: &str| line.starts_with("destroyed: ") || line.starts_with("released: 0 ranges left");
        self.log().into_iter().filter(|line| !is_fine(line)).collect()
    }

    /// Returns the sums of transfers of all contexts that were destroyed: into the GPU, out of it, and fills.
    #[must_use]
    pub fn transfers(&self) -> [u64; 3] {
        let mut sums = [0; 3];
        for line in self.log().iter().filter(|line| line.starts_with("destroyed: ")) {
            let numbers = line.split(' ').filter_map(|word| word.parse::<u64>().ok());
            sums.iter_mut().zip(numbers).for_each(|(sum, number)| *sum += number);
        }
        sums
    }
}
