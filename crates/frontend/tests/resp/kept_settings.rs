//! Tests of CONFIG REWRITE, and of passwords of which only the salted hash is known.

use crate::model::KvDeviceModel;
use crate::wire::{RespTestClient, RespValue, TestNode};
use headwater_frontend::resp::{
    GivenPassword, KEPT_SETTINGS_FILE, PasswordPrecedence, RespConfig, RespFrontEnd, SALT_BYTES, SaltedHash,
};
use headwater_host::clock::{Nanos, UnixMillis};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};

fn config(kept: Option<PathBuf>, password: Option<(&str, PasswordPrecedence)>) -> RespConfig {
    RespConfig {
        listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
        kept_settings: kept,
        password: password
            .map(|(text, precedence)| GivenPassword { text: text.to_owned().into(), precedence }),
        ..RespConfig::default()
    }
}

fn start(folder: &Path, password: Option<(&str, PasswordPrecedence)>) -> TestNode {
    let kept = folder.join(KEPT_SETTINGS_FILE);
    TestNode::start_with(config(Some(kept), password), KvDeviceModel::new(3, 100))
}

fn ok() -> RespValue {
    RespValue::Simple("OK".to_owned())
}

#[track_caller]
fn refused(reply: RespValue, part: &str) {
    let RespValue::Error(text) = reply else { panic!("not refused: {reply:?}") };
    assert!(text.contains(part), "{text}");
}

/// Returns the value of a parameter.
fn parameter(client: &mut RespTestClient<TcpStream>, name: &str) -> String {
    let RespValue::Array(pair) = client.call(&[b"CONFIG", b"GET", name.as_bytes()]) else {
        panic!("no pair")
    };
    let [_, RespValue::Bulk(value)] = &pair[..] else { panic!("{pair:?}") };
    String::from_utf8(value.clone()).unwrap()
}

#[test]
fn config_rewrite_keeps_every_changed_setting_over_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let values = [
        ("client-output-buffer-limit", "normal 2097152 131072 7 slave 0 0 0 pubsub 0 0 0"),
        ("maxclients", "77"),
        ("proto-max-bulk-len", "2097152"),
        ("slowlog-log-slower-than", "-1"),
        ("slowlog-max-len", "9"),
        ("timeout", "300"),
    ];
    {
        let node = start(folder.path(), None);
        let mut client = node.connect();
        for (name, value) in values {
            assert_eq!(client.call(&[b"CONFIG", b"SET", name.as_bytes(), value.as_bytes()]), ok(), "{name}");
        }
        assert_eq!(client.call_line("CONFIG SET requirepass open-sesame"), ok());
        assert_eq!(client.call_line("CONFIG REWRITE"), ok());
        // What is changed afterwards is not kept.
        assert_eq!(client.call_line("CONFIG SET maxclients 78"), ok());
    }
    let text = std::fs::read_to_string(folder.path().join(KEPT_SETTINGS_FILE)).unwrap();
    assert!(text.contains("$scrypt$") && !text.contains("sesame"), "{text}");
    let node = start(folder.path(), None);
    let mut client = node.connect();
    refused(client.call_line("GET k"), "NOAUTH");
    refused(client.call_line("AUTH wrong"), "WRONGPASS");
    refused(client.call_line("AUTH other open-sesame"), "WRONGPASS");
    assert_eq!(client.call_line("AUTH open-sesame"), ok());
    for (name, value) in values {
        assert_eq!(parameter(&mut client, name), value, "{name}");
    }
    // A second rewrite keeps what was kept before, and an empty password is kept too.
    assert_eq!(client.call(&[b"CONFIG", b"SET", b"requirepass", b""]), ok());
    assert_eq!(client.call_line("CONFIG REWRITE"), ok());
    drop(node);
    let node = start(folder.path(), None);
    let mut client = node.connect();
    assert_eq!(parameter(&mut client, "timeout"), "300");
    assert_eq!(parameter(&mut client, "requirepass"), "");
}

#[test]
fn config_rewrite_without_a_directory_or_with_a_missing_one_says_so() {
    let node = TestNode::start_with(config(None, None), KvDeviceModel::new(3, 100));
    let mut client = node.connect();
    assert_eq!(client.call_line("CONFIG SET timeout 9"), ok());
    refused(client.call_line("CONFIG REWRITE"), "no data directory");
    refused(client.call_line("CONFIG REWRITE now"), "wrong number of arguments");

    let folder = tempfile::tempdir().unwrap();
    let node = start(&folder.path().join("removed"), None);
    let mut client = node.connect();
    refused(client.call_line("CONFIG REWRITE"), "removed/settings.json");
    assert_eq!(client.call_line("PING"), RespValue::Simple("PONG".to_owned()));
}

/// A hash of `correct horse` that is checked in a millisecond.
const QUICK_HASH: &str =
    "$scrypt$ln=10,r=8,p=1$c2FsdHNhbHRzYWx0c2FsdA$A9lBa6RTbfBovWqamVIqXKovIl4Vk6OZyVojLJmYmSI";

/// Sends a line and runs the front end, whose clock stands still, until there is a line of reply.
fn call_at(front_end: &mut RespFrontEnd, at: Nanos, mut stream: &TcpStream, line: &str) -> String {
    stream.write_all(format!("{line}\r\n").as_bytes()).unwrap();
    stream.set_nonblocking(true).unwrap();
    let (mut model, mut reply, mut buffer) = (KvDeviceModel::new(3, 100), String::new(), [0; 4_096]);
    while !reply.ends_with("\r\n") {
        front_end.poll(&mut model, at, UnixMillis(1_000_000));
        match stream.read(&mut buffer) {
            Ok(0) => panic!("the connection ended after {reply:?}"),
            Ok(count) => reply.push_str(std::str::from_utf8(&buffer[..count]).unwrap()),
            Err(_) => std::thread::yield_now(),
        }
    }
    reply
}

#[test]
fn wrong_passwords_are_throttled_while_only_a_hash_is_known() {
    let given = Some((QUICK_HASH, PasswordPrecedence::Given));
    let mut front_end = RespFrontEnd::bind(config(None, given)).unwrap();
    let address = front_end.local_addr().unwrap();
    let mut call = |at, stream: &TcpStream, line: &str| call_at(&mut front_end, at, stream, line);
    let start = Nanos::from_millis(1_000);
    let client = TcpStream::connect(address).unwrap();
    for number in 0..9 {
        let line = if number % 2 == 0 { "AUTH guess" } else { "HELLO 3 SETNAME me AUTH default guess" };
        let reply = call(start, &client, line);
        assert!(reply.starts_with("-WRONGPASS"), "{reply}");
    }
    // The tenth leaves before its password is checked, and counts all the same.
    let mut leaver = TcpStream::connect(address).unwrap();
    leaver.write_all(b"AUTH guess\r\n").unwrap();
    drop(leaver);
    let honest = TcpStream::connect(address).unwrap();
    let reply = call(start, &honest, "PING");
    assert!(reply.starts_with("-NOAUTH"), "{reply}");
    let reply = call(start, &honest, "AUTH \"correct horse\"");
    assert!(reply.contains("wait 10 seconds"), "{reply}");
    let reply = call(Nanos::from_millis(11_000), &honest, "AUTH \"correct horse\"");
    assert_eq!(reply, "+OK\r\n");
}

#[test]
fn clients_that_send_the_password_at_once_after_a_start_are_all_served() {
    let hash = SaltedHash::of(b"secret", &[6; SALT_BYTES]).to_string();
    let given = Some((&hash[..], PasswordPrecedence::Given));
    let node = TestNode::start_with(config(None, given), KvDeviceModel::new(3, 100));
    let mut clients: Vec<_> = (0..60).map(|_| node.connect()).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        let key = format!("k{number}");
        let mut bytes = crate::wire::encode(&[b"AUTH", b"secret"]);
        bytes.extend(crate::wire::encode(&[b"SET", key.as_bytes(), b"v"]));
        client.send(&bytes);
    }
    for client in &mut clients {
        assert_eq!(client.receive(), ok());
        assert_eq!(client.receive(), ok());
    }
    let mut hello = node.connect();
    refused(hello.call_line("HELLO 3 AUTH default wrong"), "WRONGPASS");
    assert!(matches!(hello.call_line("HELLO 3 AUTH default secret SETNAME me"), RespValue::Map(_)));
}

#[test]
fn password_of_the_command_line_precedes_the_kept_one_and_that_the_one_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    {
        let node = start(folder.path(), Some(("first", PasswordPrecedence::Kept)));
        let mut client = node.connect();
        assert_eq!(client.call_line("AUTH first"), ok(), "nothing is kept yet");
        assert_eq!(client.call_line("CONFIG SET requirepass kept"), ok());
        assert_eq!(client.call_line("CONFIG REWRITE"), ok());
    }
    {
        let node = start(folder.path(), Some(("first", PasswordPrecedence::Kept)));
        refused(node.connect().call_line("AUTH first"), "WRONGPASS");
        assert_eq!(node.connect().call_line("AUTH kept"), ok());
    }
    {
        let node = start(folder.path(), Some(("given", PasswordPrecedence::Given)));
        refused(node.connect().call_line("AUTH kept"), "WRONGPASS");
        let mut client = node.connect();
        assert_eq!(client.call_line("AUTH given"), ok());
        // The password that applies is the one that is kept from now on.
        assert_eq!(client.call_line("CONFIG REWRITE"), ok());
    }
    let node = start(folder.path(), None);
    refused(node.connect().call_line("AUTH kept"), "WRONGPASS");
    assert_eq!(node.connect().call_line("AUTH given"), ok());
}

#[test]
fn config_get_shows_a_hash_that_config_set_takes() {
    let node = TestNode::start(3, 100);
    let mut client = node.connect();
    assert_eq!(client.call_line("CONFIG SET requirepass open-sesame timeout 5"), ok());
    let hash = parameter(&mut client, "requirepass");
    assert!(hash.starts_with("$scrypt$"), "{hash}");
    assert_eq!(client.call_line("CONFIG SET requirepass another"), ok());
    refused(node.connect().call_line("AUTH open-sesame"), "WRONGPASS");
    assert_eq!(client.call(&[b"CONFIG", b"SET", b"requirepass", hash.as_bytes()]), ok());
    assert_eq!(parameter(&mut client, "requirepass"), hash);
    refused(node.connect().call_line("AUTH another"), "WRONGPASS");
    assert_eq!(node.connect().call_line("AUTH open-sesame"), ok());
    refused(client.call_line("CONFIG SET requirepass $scrypt$nothing timeout 6"), "starts with $scrypt$");
    let costly = hash.replace("ln=14", "ln=30");
    refused(client.call(&[b"CONFIG", b"SET", b"requirepass", costly.as_bytes()]), "too much memory");
    assert_eq!(parameter(&mut client, "timeout"), "5", "a refused CONFIG SET changed something");
    assert_eq!(node.connect().call_line("AUTH open-sesame"), ok());
}

#[test]
fn damaged_or_foreign_settings_prevent_the_start_and_say_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(KEPT_SETTINGS_FILE);
    {
        let node = start(folder.path(), None);
        let mut client = node.connect();
        assert_eq!(client.call_line("CONFIG SET timeout 5"), ok());
        assert_eq!(client.call_line("CONFIG REWRITE"), ok());
    }
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("\"5\"", "\"6\"")).unwrap();
    let error = RespFrontEnd::bind(config(Some(path.clone()), None)).unwrap_err().to_string();
    assert!(error.contains("settings.json") && error.contains("move it away"), "{error}");
    std::fs::remove_file(&path).unwrap();
    assert!(RespFrontEnd::bind(config(Some(path), None)).is_ok());

    let broken = Some(("$scrypt$broken", PasswordPrecedence::Given));
    let error = RespFrontEnd::bind(config(None, broken)).unwrap_err().to_string();
    assert!(error.contains("headwater password-hash"), "{error}");
}

#[test]
fn address_beyond_this_machine_accepts_a_kept_password_and_no_kept_absence_of_one() {
    let folder = tempfile::tempdir().unwrap();
    let everywhere = |password| {
        let kept = Some(folder.path().join(KEPT_SETTINGS_FILE));
        RespConfig { listen: vec![SocketAddr::from(([0, 0, 0, 0], 0))], ..config(kept, password) }
    };
    let rewrite = |password: &[u8]| {
        let node = start(folder.path(), Some(("first", PasswordPrecedence::Given)));
        let mut client = node.connect();
        assert_eq!(client.call_line("AUTH first"), ok());
        assert_eq!(client.call(&[b"CONFIG", b"SET", b"requirepass", password]), ok());
        assert_eq!(client.call_line("CONFIG REWRITE"), ok());
    };
    assert!(RespFrontEnd::bind(everywhere(None)).is_err());
    rewrite(b"kept");
    assert!(RespFrontEnd::bind(everywhere(None)).is_ok());
    rewrite(b"");
    let error = RespFrontEnd::bind(everywhere(Some(("file", PasswordPrecedence::Kept)))).unwrap_err();
    assert!(error.to_string().contains("command line"), "{error}");
    assert!(RespFrontEnd::bind(everywhere(Some(("line", PasswordPrecedence::Given)))).is_ok());
}
