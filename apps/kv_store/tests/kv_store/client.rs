//! A client of the tests, with the answers that it gets.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Simple(String),
    Error(String),
    Integer(i64),
    Bulk(Option<Vec<u8>>),
    Array(Vec<Answer>),
}

pub(crate) struct Client(pub(crate) BufReader<TcpStream>);

impl Client {
    pub(crate) fn send(&mut self, words: &[&[u8]]) {
        self.0.get_mut().write_all(&request(words)).unwrap();
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).unwrap();
    }

    pub(crate) fn answer(&mut self) -> Answer {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        let (kind, rest) = line.trim_end().split_at_checked(1).expect("an answer");
        match kind {
            "+" => Answer::Simple(rest.to_owned()),
            "-" => Answer::Error(rest.to_owned()),
            ":" => Answer::Integer(rest.parse().unwrap()),
            "*" => Answer::Array((0..rest.parse().unwrap()).map(|_| self.answer()).collect()),
            "$" if rest == "-1" => Answer::Bulk(None),
            "$" => {
                let mut bytes = vec![0; rest.parse::<usize>().unwrap() + 2];
                self.0.read_exact(&mut bytes).unwrap();
                assert!(bytes.ends_with(b"\r\n"));
                bytes.truncate(bytes.len() - 2);
                Answer::Bulk(Some(bytes))
            }
            _ => panic!("{line}"),
        }
    }

    pub(crate) fn ask(&mut self, words: &[&[u8]]) -> Answer {
        self.send(words);
        self.answer()
    }

    /// Asks by one line of words.
    pub(crate) fn line(&mut self, line: &str) -> Answer {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        self.ask(&words)
    }

    pub(crate) fn ok(&mut self, words: &[&[u8]]) {
        assert_eq!(self.ask(words), Answer::Simple("OK".to_owned()));
    }

    pub(crate) fn set(&mut self, key: &str, value: &[u8]) {
        self.ok(&[b"SET", key.as_bytes(), value]);
    }

    pub(crate) fn get(&mut self, key: &str) -> Option<Vec<u8>> {
        match self.ask(&[b"GET", key.as_bytes()]) {
            Answer::Bulk(value) => value,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn integer(&mut self, line: &str) -> i64 {
        match self.line(line) {
            Answer::Integer(number) => number,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn info(&mut self, name: &str) -> String {
        let Answer::Bulk(Some(text)) = self.line("INFO") else { panic!("no INFO") };
        let text = String::from_utf8(text).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).to_owned()
    }

    pub(crate) fn background_save(&mut self) {
        assert_eq!(self.line("BGSAVE"), Answer::Simple("Background saving started".to_owned()));
    }

    pub(crate) fn wait_for_the_save(&mut self) -> String {
        while self.info("rdb_bgsave_in_progress") == "1" {
            thread::sleep(Duration::from_millis(5));
        }
        self.info("rdb_last_bgsave_status")
    }

    /// What is left until the server closes the connection.
    pub(crate) fn rest(&mut self) -> String {
        let mut rest = Vec::new();
        // The server may be done before it has read everything: a reset is an end, too.
        let _ = self.0.read_to_end(&mut rest);
        String::from_utf8_lossy(&rest).into_owned()
    }

    pub(crate) fn holds(&mut self, model: &BTreeMap<String, Vec<u8>>) {
        assert_eq!(self.integer("DBSIZE"), model.len() as i64);
        for (key, value) in model {
            assert!(self.get(key).as_ref() == Some(value), "{key}");
        }
    }
}

pub(crate) fn request(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n", word.len()).bytes());
        bytes.extend(*word);
        bytes.extend(b"\r\n");
    }
    bytes
}
