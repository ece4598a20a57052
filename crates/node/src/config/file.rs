//! The configuration file: TOML, format version 1.
//!
//! Input: the text of a file and its name. Output: [`FileConfig`], every setting optional. An unknown key, an invalid
//! value and an unknown version are refused; the error names the key, the file and the line.

use super::attach::{AttachLocation, GrantConfig};
use super::durability::DurabilityMode;
use super::owned_device::OwnedDevice;
use super::resp_location::RespLocation;
use super::size::ByteSize;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// The format version of the configuration file; there is no other yet.
pub const CONFIG_VERSION: i64 = 1;

/// The contents of a configuration file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct FileConfig {
    /// Format version; always [`CONFIG_VERSION`] after parsing.
    pub version: i64,
    /// Data directory.
    pub data: Option<PathBuf>,
    /// NVMe controller that the node owns and shares, as `vfio:0000:00:04.0`.
    pub device: Option<OwnedDevice>,
    /// Address of the RESP front end, or `off`.
    pub resp: Option<RespLocation>,
    /// File with the password of RESP clients.
    pub resp_password: Option<PathBuf>,
    /// Address of metrics and health.
    pub metrics: Option<SocketAddr>,
    /// File with the token of clients of metrics and health.
    pub metrics_token: Option<PathBuf>,
    /// Path of a Unix socket for the RESP front end.
    pub unix: Option<PathBuf>,
    /// Path of the socket where other processes attach, or `off`.
    pub attach: Option<AttachLocation>,
    /// Grants of users and groups other than the node's own user and root.
    #[serde(default)]
    pub grant: Vec<GrantConfig>,
    /// Path of the socket for a vfio-user client.
    pub vfio_user: Option<PathBuf>,
    /// Address of the NVMe/TCP front end.
    pub nvme_tcp: Option<SocketAddr>,
    /// File of keys of NVMe/TCP hosts.
    pub nvme_tcp_psk: Option<PathBuf>,
    /// Bytes of flash.
    pub capacity: Option<ByteSize>,
    /// Bytes of device DRAM for pages.
    pub memory: Option<ByteSize>,
    /// Threads that move the bytes of large values beside the core.
    pub mover_threads: Option<u8>,
    /// True to let work queues of DSA devices move bytes too.
    pub mover_dsa: Option<bool>,
    /// GPUs whose copy engines move bytes too.
    pub mover_gpu: Option<u8>,
    /// Durability of every namespace that has no table of its own.
    pub durability: Option<DurabilityMode>,
    /// Path of the ready file.
    pub ready_file: Option<PathBuf>,
    /// Settings of single namespaces, by number from 1.
    #[serde(default)]
    pub namespace: BTreeMap<String, NamespaceConfig>,
}

/// The settings of one namespace in a configuration file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct NamespaceConfig {
    /// Durability mode of its writes.
    pub durability: DurabilityMode,
}

/// The error of a configuration file that was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileConfigError {
    /// A line that TOML or this format does not allow.
    #[error("{file}:{line}: {key}{message}")]
    Line {
        /// The file.
        file: String,
        /// Line, from 1.
        line: usize,
        /// The key on that line with its separator, or nothing.
        key: String,
        /// The fault and the allowed values.
        message: String,
    },
    /// No `version` key.
    #[error("{file}: no format version: add the line `version = {CONFIG_VERSION}`")]
    NoVersion {
        /// The file.
        file: String,
    },
    /// A version that this program does not support.
    #[error(
        "{file}:{line}: version {found} is unknown: this program reads version {CONFIG_VERSION}; use a newer headwater"
    )]
    UnknownVersion {
        /// The file.
        file: String,
        /// Line, from 1.
        line: usize,
        /// The version in the file.
        found: String,
    },
}

/// Parses the text of a configuration file.
///
/// # Errors
/// [`FileConfigError`] names the file, the line and the key.
pub fn parse(text: &str, file: &Path) -> Result<FileConfig, FileConfigError> {
    let table: toml::Table = text.parse().map_err(|error| at_line(text, file, &error))?;
    match table.get("version") {
        None => {
            return Err(FileConfigError::NoVersion { file: file.display().to_string() });
        }
        Some(toml::Value::Integer(CONFIG_VERSION)) => {}
        Some(other) => {
            return Err(FileConfigError::UnknownVersion {
                file: file.display().to_string(),
                line: line_of_key(text, "version"),
                found: other.to_string(),
            });
        }
    }
    toml::from_str(text).map_err(|error| at_line(text, file, &error))
}

fn at_line(text: &str, file: &Path, error: &toml::de::Error) -> FileConfigError {
    let offset = error.span().map_or(0, |span| span.start).min(text.len());
    let before = text.get(..offset).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    let source = text.lines().nth(line - 1).unwrap_or_default();
    let key = match source.split_once('=') {
        Some((key, _value)) => format!("{}: ", key.trim()),
        None => String::new(),
    };
    FileConfigError::Line {
        file: file.display().to_string(),
        line,
        key,
        message: error.message().replace('\n', " "),
    }
}

fn line_of_key(text: &str, key: &str) -> usize {
    text.lines()
        .position(|line| line.split('=').next().is_some_and(|name| name.trim() == key))
        .map_or(1, |index| index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        parse(text, Path::new("node.toml")).unwrap_err().to_string()
    }

    #[test]
    fn error_names_an_unknown_key_with_file_and_line() {
        let error = refused("version = 1\n\ncapcity = \"8GiB\"\n");
        assert!(error.starts_with("node.toml:3: capcity: unknown field"), "{error}");
        assert!(error.contains("`capacity`"), "the known keys are listed: {error}");
    }

    #[test]
    fn error_names_an_unknown_key_of_a_namespace() {
        let error = refused("version = 1\n[namespace.2]\ndurability = \"always\"\ndurabilty = \"always\"\n");
        assert!(error.starts_with("node.toml:4: durabilty: unknown field"), "{error}");
    }

    #[test]
    fn error_names_an_invalid_value_with_its_line() {
        for (line, what) in [
            ("capacity = \"8 GiB\"", "`8 GiB` is not a size"),
            ("durability = \"sometimes\"", "`sometimes` is not a durability mode"),
            ("resp = \"localhost\"", "socket address"),
            ("memory = -4", "a size"),
            ("data = 7", "string"),
        ] {
            let error = refused(&format!("version = 1\n{line}\n"));
            let key = line.split(' ').next().unwrap();
            assert!(error.starts_with(&format!("node.toml:2: {key}: ")), "{error}");
            assert!(error.contains(what), "{error}");
        }
    }

    #[test]
    fn unknown_versions_are_refused_before_other_keys() {
        let error = refused("future-key = 1\nversion = 2\n");
        assert!(error.starts_with("node.toml:2: version 2 is unknown"), "{error}");
        assert!(refused("data = \"x\"\n").contains("version = 1"));
    }

    #[test]
    fn invalid_toml_is_refused_with_its_line() {
        assert!(refused("version = 1\ndata = \"x\n").starts_with("node.toml:2:"));
    }

    #[test]
    fn every_setting_is_read() {
        let config = parse(
            "version = 1\ndata = \"d\"\nresp = \"127.0.0.1:0\"\nmetrics = \"[::1]:0\"\nunix = \"s\"\ncapacity = \"1G\"\n\
             memory = 1048576\ndurability = \"on-flush\"\nready-file = \"r\"\n[namespace.3]\ndurability = \"interval=5\"\n",
            Path::new("node.toml"),
        )
        .unwrap();
        assert_eq!(config.capacity, Some(ByteSize(1 << 30)));
        assert_eq!(config.memory, Some(ByteSize(1 << 20)));
        assert_eq!(config.namespace["3"].durability.to_string(), "interval=5");
    }
}
