//! The live target: a node over RESP.
//!
//! Input: batches. Output: pipelined commands, results in order. The requests of a batch are sent before its replies
//! are read, so a batch with large replies is split where its requests could fill both socket buffers.

use super::{KeyValueRecord, KvError, KvRange, KvTarget, OnFound, OnStored, ScanCursor, StoreResult};
use crate::kv::resp_client::{ClientError, ClientStream, DecodedReply, NodeEndpoint, RespClient};
use std::time::Duration;

/// Maximum request bytes sent before replies of any size are read: less than a socket buffer holds.
const REQUEST_BYTES_MAX: usize = 32 * 1024;
const SCAN_COUNT: &[u8] = b"1000";

/// A connection to a live node.
#[derive(Debug)]
pub struct LiveTarget {
    client: RespClient,
}

impl LiveTarget {
    /// Connects, sends the password if there is one, and selects a namespace, numbered from 1.
    ///
    /// # Errors
    /// When no node listens, it wants another password, or the namespace does not exist.
    pub fn connect(
        endpoint: &NodeEndpoint,
        limit: Duration,
        namespace: u8,
        password: Option<&str>,
    ) -> Result<Self, ClientError> {
        let mut client = RespClient::connect(endpoint, limit)?;
        match password {
            Some(password) => client.call(&[b"AUTH", password.as_bytes()])?,
            // A node that wants a password says so here, and not for each command.
            None => client.call(&[b"PING"])?,
        };
        if namespace != 1 {
            let database = namespace.saturating_sub(1).to_string();
            client.call(&[b"SELECT", database.as_bytes()])?;
        }
        Ok(Self { client })
    }

    /// Returns the socket; only between two calls.
    #[must_use]
    pub fn into_stream(self) -> ClientStream {
        self.client.into_stream()
    }

    /// Sends `[command, key]` for each key, at most [`REQUEST_BYTES_MAX`] at a time, and passes every reply to
    /// `answer`.
    fn call_each(
        &mut self,
        command: &'static str,
        keys: &[Vec<u8>],
        answer: &mut dyn FnMut(usize, DecodedReply) -> Result<(), KvError>,
    ) -> Result<(), KvError> {
        let mut first = 0;
        while first < keys.len() {
            let mut bytes = 0;
            let mut end = first;
            for key in keys.get(first..).unwrap_or_default() {
                if end > first && bytes + key.len() > REQUEST_BYTES_MAX {
                    break;
                }
                bytes += key.len() + 32;
                self.client.push(&[command.as_bytes(), key]);
                end += 1;
            }
            self.client.send()?;
            for index in first..end {
                match self.client.receive()? {
                    DecodedReply::Error(text) => return Err(ClientError::Refused(text).into()),
                    reply => answer(index, reply)?,
                }
            }
            first = end;
        }
        Ok(())
    }
}

impl KvTarget for LiveTarget {
    fn set(&mut self, records: &[KeyValueRecord], answer: OnStored<'_>) -> Result<(), KvError> {
        for record in records {
            match record.expiry_ms {
                None => self.client.push(&[b"SET", &record.key, &record.value]),
                Some(at) => {
                    let at = at.to_string();
                    self.client.push(&[b"SET", &record.key, &record.value, b"PXAT", at.as_bytes()]);
                }
            }
        }
        // When sending fails, the first records may have been acknowledged: their replies are read before the error.
        let sent = self.client.send();
        for index in 0..records.len() {
            let stored = match self.client.receive() {
                Ok(DecodedReply::Simple(_)) => StoreResult::Acknowledged,
                Ok(DecodedReply::Error(text)) => StoreResult::Refused(text),
                Ok(reply) => return Err(self.client.unexpected("SET", reply).into()),
                Err(error) => return Err(sent.err().unwrap_or(error).into()),
            };
            answer(index, stored)?;
        }
        Ok(sent?)
    }

    fn get(&mut self, keys: &[Vec<u8>], answer: OnFound<'_>) -> Result<(), KvError> {
        let endpoint = self.client.endpoint().clone();
        self.call_each("GET", keys, &mut |index, reply| match reply {
            DecodedReply::Bulk(value) => answer(index, Some(value)),
            DecodedReply::Nil => answer(index, None),
            reply => {
                Err(ClientError::Unexpected { endpoint: endpoint.clone(), command: "GET", reply }.into())
            }
        })
    }

    fn get_range(&mut self, key: &[u8], range: KvRange) -> Result<Option<Vec<u8>>, KvError> {
        // GETRANGE names the last byte; no range is empty.
        let first = u64::from(range.offset);
        let last = (first + u64::from(range.bytes_max)).saturating_sub(1);
        let (first, last) = (first.to_string(), last.to_string());
        let part = match range.bytes_max {
            0 => DecodedReply::Bulk(Vec::new()),
            _ => self.client.call(&[b"GETRANGE", key, first.as_bytes(), last.as_bytes()])?,
        };
        let part = match part {
            DecodedReply::Bulk(part) => part,
            other => return Err(self.client.unexpected("GETRANGE", other).into()),
        };
        if !part.is_empty() {
            return Ok(Some(part));
        }
        // The reply for a missing key is that for a range without bytes.
        let found = self.client.call(&[b"EXISTS", key])?;
        Ok((found == DecodedReply::Integer(1)).then_some(part))
    }

    fn expiry(&mut self, keys: &[Vec<u8>]) -> Result<Vec<Option<u64>>, KvError> {
        let mut found = Vec::with_capacity(keys.len());
        self.call_each("PEXPIRETIME", keys, &mut |_index, reply| {
            found.push(match reply {
                // -1 is a key without expiry, -2 is no such key.
                DecodedReply::Integer(at) => u64::try_from(at).ok(),
                _ => None,
            });
            Ok(())
        })?;
        Ok(found)
    }

    fn del(&mut self, keys: &[Vec<u8>]) -> Result<u64, KvError> {
        let mut deleted = 0;
        self.call_each("DEL", keys, &mut |_index, reply| {
            deleted += u64::from(reply == DecodedReply::Integer(1));
            Ok(())
        })?;
        Ok(deleted)
    }

    fn exists(&mut self, keys: &[Vec<u8>]) -> Result<Vec<bool>, KvError> {
        let mut found = Vec::with_capacity(keys.len());
        self.call_each("EXISTS", keys, &mut |_index, reply| {
            found.push(reply == DecodedReply::Integer(1));
            Ok(())
        })?;
        Ok(found)
    }

    fn scan(
        &mut self,
        from: ScanCursor,
        pattern: Option<&[u8]>,
    ) -> Result<(Vec<Vec<u8>>, Option<ScanCursor>), KvError> {
        let cursor = from.0.to_string();
        let mut parts: Vec<&[u8]> = vec![b"SCAN", cursor.as_bytes(), b"COUNT", SCAN_COUNT];
        if let Some(pattern) = pattern {
            parts.extend([&b"MATCH"[..], pattern]);
        }
        let reply = self.client.call(&parts)?;
        parse_scan(&reply).ok_or_else(|| self.client.unexpected("SCAN", reply).into())
    }

    fn key_count(&mut self) -> Result<u64, KvError> {
        match self.client.call(&[b"DBSIZE"])? {
            DecodedReply::Integer(count @ 0..) => Ok(count.unsigned_abs()),
            reply => Err(self.client.unexpected("DBSIZE", reply).into()),
        }
    }
}

fn parse_scan(reply: &DecodedReply) -> Option<(Vec<Vec<u8>>, Option<ScanCursor>)> {
    let DecodedReply::Array(parts) = reply else { return None };
    let [DecodedReply::Bulk(cursor), DecodedReply::Array(items)] = parts.as_slice() else {
        return None;
    };
    let cursor: u64 = std::str::from_utf8(cursor).ok()?.parse().ok()?;
    let mut keys = Vec::with_capacity(items.len());
    for item in items {
        let DecodedReply::Bulk(key) = item else { return None };
        keys.push(key.clone());
    }
    Some((keys, (cursor != 0).then_some(ScanCursor(cursor))))
}
