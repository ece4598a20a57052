//! A key in interchange form, or a file of them: parsed and printed unchanged, or refused with a short message.

use headwater_nvme::tcp::psk::{ConfiguredKey, HostKey, PskVersion};

/// Parses keys, and prints those that parse.
///
/// # Panics
/// If a key changes by parsing and printing, or if a refusal is long.
pub fn body(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Ok(keys) = HostKey::parse_all(text) {
        let lines: Vec<String> =
            keys.iter().map(|host| format!("{} {}\n", host.host, *host.key.to_text())).collect();
        assert_eq!(
            HostKey::parse_all(&lines.concat()).as_ref(),
            Ok(&keys),
            "a file changed by parsing and printing"
        );
    }
    match ConfiguredKey::parse(text) {
        Ok(key) => {
            assert_eq!(*key.to_text(), text, "a key has one text");
            let retained = key.retained("nqn.h").expect("a name");
            for version in PskVersion::ALL {
                let psk = retained.tls_psk(version, "nqn.h", "nqn.s").expect("short names");
                assert_eq!(psk.secret.len(), key.hash().bytes(), "a secret is as long as its hash");
            }
        }
        Err(error) => assert!(error.to_string().len() < 200, "a refusal is short"),
    }
}
