//! A JSON writer for `explain`, stats and dumps: the plugin has no crate for that.

use std::fmt::{Display, Write as _};

/// An object under construction.
#[derive(Debug)]
pub(super) struct Object(String);

impl Object {
    pub(super) fn new() -> Self {
        Self(String::from("{"))
    }

    pub(super) fn text(self, name: &str, value: impl Display) -> Self {
        let value = quoted(&value.to_string());
        self.raw(name, &value)
    }

    /// A text, or null.
    pub(super) fn maybe<T: Display>(self, name: &str, value: Option<T>) -> Self {
        match value {
            Some(value) => self.text(name, value),
            None => self.raw(name, "null"),
        }
    }

    pub(super) fn flag(self, name: &str, value: bool) -> Self {
        self.raw(name, if value { "true" } else { "false" })
    }

    /// An integer. Readers of JSON may round integers above 2^53.
    pub(super) fn number(self, name: &str, value: impl Into<u64>) -> Self {
        let value: u64 = value.into();
        self.raw(name, &value.to_string())
    }

    /// A value that is JSON already.
    pub(super) fn raw(mut self, name: &str, json: &str) -> Self {
        if self.0.len() > 1 {
            self.0.push(',');
        }
        self.0.push_str(&quoted(name));
        self.0.push(':');
        self.0.push_str(json);
        self
    }

    pub(super) fn end(mut self) -> String {
        self.0.push('}');
        self.0
    }
}

/// An array of values that are JSON already.
pub(super) fn array(items: impl IntoIterator<Item = String>) -> String {
    let items: Vec<_> = items.into_iter().collect();
    format!("[{}]", items.join(","))
}

/// RFC 8259, section 7: quotes, backslashes and control characters are escaped, and nothing else must be.
fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for letter in text.chars() {
        match letter {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            control if control < ' ' => {
                let written = write!(quoted, "\\u{:04x}", u32::from(control));
                debug_assert!(written.is_ok(), "writing to a string never fails");
            }
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_with_any_characters_stays_one_string() {
        assert_eq!(quoted("a\"b\\c\nd\u{1}\u{7f}é"), "\"a\\\"b\\\\c\\nd\\u0001\u{7f}é\"");
    }

    #[test]
    fn an_object_is_written_in_the_order_of_its_names() {
        let items = ["1".to_owned(), "2".to_owned()];
        let object = Object::new()
            .text("a", "x")
            .maybe("b", None::<&str>)
            .flag("c", true)
            .number("d", 7_u32)
            .raw("e", &array(items));
        assert_eq!(object.end(), r#"{"a":"x","b":null,"c":true,"d":7,"e":[1,2]}"#);
        assert_eq!(Object::new().end(), "{}");
    }
}
