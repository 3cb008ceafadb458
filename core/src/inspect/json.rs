//! A writer of JSON ([RFC 8259](https://www.rfc-editor.org/rfc/rfc8259)), for the few shapes that
//! an answer has.
#![forbid(unsafe_code)]

use std::fmt::{Display, Write as _};

use ibex_base::Escaped;

/// An object that is being written.
pub(crate) struct Object<'a> {
    text: &'a mut String,
    is_empty: bool,
}

/// Returns an object as text, on one line.
pub(crate) fn object(write: impl FnOnce(&mut Object<'_>)) -> String {
    let mut text = String::new();
    write_object(&mut text, write);
    text
}

impl Object<'_> {
    /// Adds a text, with the characters escaped that are not printed as themselves.
    pub(crate) fn text(&mut self, name: &str, value: impl Display) {
        let value = Escaped(&value.to_string()).to_string();
        write_text(self.member(name), &value);
    }

    /// Adds a text if there is one.
    pub(crate) fn text_of(&mut self, name: &str, value: Option<impl Display>) {
        if let Some(value) = value {
            self.text(name, value);
        }
    }

    /// Adds a number. Some readers of JSON keep 53 bits of it.
    pub(crate) fn number(&mut self, name: &str, value: u64) {
        let _ = write!(self.member(name), "{value}");
    }

    /// Adds a number if there is one.
    pub(crate) fn number_of(&mut self, name: &str, value: Option<u64>) {
        if let Some(value) = value {
            self.number(name, value);
        }
    }

    /// Adds an object.
    pub(crate) fn object(&mut self, name: &str, write: impl FnOnce(&mut Object<'_>)) {
        write_object(self.member(name), write);
    }

    /// Adds a list with an object for each item.
    pub(crate) fn list<T>(
        &mut self,
        name: &str,
        items: impl IntoIterator<Item = T>,
        mut write: impl FnMut(&mut Object<'_>, T),
    ) {
        let text = self.member(name);
        text.push('[');
        for (index, item) in items.into_iter().enumerate() {
            if index > 0 {
                text.push(',');
            }
            write_object(text, |object| write(object, item));
        }
        text.push(']');
    }

    /// Writes the name of a member, and returns the text to write the value to.
    fn member(&mut self, name: &str) -> &mut String {
        if !std::mem::replace(&mut self.is_empty, false) {
            self.text.push(',');
        }
        write_text(self.text, name);
        self.text.push(':');
        self.text
    }
}

fn write_object(text: &mut String, write: impl FnOnce(&mut Object<'_>)) {
    text.push('{');
    write(&mut Object {
        text,
        is_empty: true,
    });
    text.push('}');
}

fn write_text(text: &mut String, value: &str) {
    text.push('"');
    for character in value.chars() {
        match character {
            '"' | '\\' => text.extend(['\\', character]),
            '\0'..='\u{1f}' => {
                let _ = write!(text, "\\u{:04x}", u32::from(character));
            }
            _ => text.push(character),
        }
    }
    text.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_written_as_json_has_it() {
        let text = object(|object| {
            object.text("name", "a \"b\" \\ \u{1b}[2J\nß");
            object.text_of("none", None::<&str>);
            object.number("most", u64::MAX);
            object.number_of("nothing", None);
            object.object("empty", |_| {});
            object.list("list", [1, 2], |item, number| item.number("n", number));
            object.list("no", [0; 0], |item, number| item.number("n", number));
        });
        assert_eq!(
            text,
            "{\"name\":\"a \\\"b\\\" \\\\ \\\\u{1b}[2J\\\\nß\",\"most\":18446744073709551615,\
             \"empty\":{},\"list\":[{\"n\":1},{\"n\":2}],\"no\":[]}"
        );
        assert_eq!(
            object(|object| object.number("a\u{1}", 0)),
            "{\"a\\u0001\":0}"
        );
    }
}
