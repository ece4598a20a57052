//! A Rust file as its code: comments and the contents of string literals replaced by spaces.
//!
//! Input: the text of a file. Output: a text of the same length and lines, so that positions stay. It is a scanner, not a
//! parser: it handles line and nested block comments, strings, raw strings, characters and lifetimes.

/// Returns the code of a Rust file.
pub(crate) fn code_of(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut code = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let end = match bytes[at] {
            b'/' if bytes[at..].starts_with(b"//") => line_end(bytes, at),
            b'/' if bytes[at..].starts_with(b"/*") => block_end(bytes, at),
            b'"' => string_end(bytes, at + 1),
            b'r' if !follows_word(bytes, at) => raw_end(bytes, at).unwrap_or(at),
            b'\'' => character_end(bytes, at).unwrap_or(at),
            _ => at,
        };
        if end == at {
            code.push(bytes[at]);
            at += 1;
            continue;
        }
        code.extend(bytes[at..end].iter().map(|&byte| if byte == b'\n' { b'\n' } else { b' ' }));
        at = end;
    }
    String::from_utf8(code).unwrap_or_default()
}

/// Returns the code of a Rust file up to its own block of tests.
pub(crate) fn code_before_tests(text: &str) -> String {
    let code = code_of(text);
    let starts = ["\n#[cfg(test)]\n", "\n#[cfg(all(test"];
    let cut = starts.iter().flat_map(|start| code.match_indices(start)).map(|(at, _)| at);
    let cut = cut.filter(|at| opens_block(&code[at + 1..])).min();
    cut.map_or(code.clone(), |at| code[..at].to_owned())
}

/// Returns whether attributes are followed by a module with a block.
fn opens_block(code: &str) -> bool {
    let is_attribute =
        |line: &&str| line.starts_with("#[") || line.starts_with([' ', ')']) || line.is_empty();
    let item = code.lines().find(|line| !is_attribute(line)).unwrap_or("");
    item.starts_with("mod ") && item.trim_end().ends_with('{')
}

fn follows_word(bytes: &[u8], at: usize) -> bool {
    at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_')
}

fn line_end(bytes: &[u8], at: usize) -> usize {
    bytes[at..].iter().position(|&byte| byte == b'\n').map_or(bytes.len(), |length| at + length)
}

fn block_end(bytes: &[u8], start: usize) -> usize {
    let (mut at, mut depth) = (start, 0);
    while at < bytes.len() {
        if bytes[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if bytes[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    bytes.len()
}

fn string_end(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// Returns the end of a raw string that starts with `r` here.
fn raw_end(bytes: &[u8], at: usize) -> Option<usize> {
    let hashes = bytes[at + 1..].iter().take_while(|&&byte| byte == b'#').count();
    let open = at + 1 + hashes;
    if bytes.get(open) != Some(&b'"') {
        return None;
    }
    let close: Vec<u8> = std::iter::once(b'"').chain(std::iter::repeat_n(b'#', hashes)).collect();
    let length = bytes[open + 1..].windows(close.len()).position(|window| window == close)?;
    Some(open + 1 + length + close.len())
}

/// Returns the end of a character literal; `None` for a lifetime.
fn character_end(bytes: &[u8], at: usize) -> Option<usize> {
    if bytes.get(at + 1) == Some(&b'\\') {
        let length = bytes[at + 3..].iter().position(|&byte| byte == b'\'')?;
        return Some(at + 3 + length + 1);
    }
    let text = std::str::from_utf8(&bytes[at + 1..]).ok()?;
    let width = text.chars().next()?.len_utf8();
    (bytes.get(at + 1 + width) == Some(&b'\'')).then_some(at + 2 + width)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_strings_are_blanked_and_lines_stay() {
        let text = "let a = \"// no\"; // use x;\n/* use /* y */ */ let r = r#\"use \"z\"\"#;\nlet c = '\"'; let d: &'a u8;\n";
        let code = code_of(text);
        assert_eq!(code.len(), text.len());
        assert_eq!(code.lines().count(), text.lines().count());
        assert!(!code.contains("use") && !code.contains("no"));
        assert!(code.contains("let a =") && code.contains("let r =") && code.contains("&'a u8;"));
    }

    #[test]
    fn a_block_of_tests_is_cut_and_a_file_of_tests_is_declared() {
        let text = "mod a;\n#[cfg(test)]\nmod tests;\nfn f() {}\n#[cfg(test)]\n#[expect(x)]\nmod more {\n    use x;\n}\n";
        let code = code_before_tests(text);
        assert!(code.contains("fn f()") && !code.contains("use x"));
    }
}
