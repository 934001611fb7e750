//! include/ironrail.h is what cbindgen generates from src/abi and crates/net-abi.
//!
//! With UPDATE_HEADER=1 the file is written instead of compared: scripts/header.

use std::fs;
use std::path::Path;

#[test]
fn the_header_is_what_the_sources_say() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml"))
        .expect("cbindgen.toml is well-formed");
    let made = cbindgen::Builder::new()
        .with_crate(root)
        .with_config(config)
        .generate()
        .expect("the sources parse");
    let mut text = Vec::new();
    made.write(&mut text);
    let text = String::from_utf8(text).expect("C is text");

    let header = root.join("include/ironrail.h");
    if std::env::var_os("UPDATE_HEADER").is_some() {
        fs::write(&header, &text).expect("the header can be written");
    }
    let committed = fs::read_to_string(&header).unwrap_or_default();
    if let Some((line, (was, is))) = first_difference(&committed, &text) {
        panic!(
            "include/ironrail.h:{line} is not what the sources give, run scripts/header:\n- {was}\n+ {is}"
        );
    }
    // cbindgen skips what it cannot parse, so the important names are searched for.
    for (version, symbol) in net_abi::SYMBOLS {
        let symbol = symbol.to_str().expect("ASCII");
        assert!(
            text.contains(&format!("extern const IronrailNetV{version} {symbol};")),
            "{symbol} is missing"
        );
    }
}

fn first_difference<'a>(left: &'a str, right: &'a str) -> Option<(usize, (&'a str, &'a str))> {
    let (mut left, mut right) = (left.lines(), right.lines());
    (1..)
        .map_while(|line| match (left.next(), right.next()) {
            (None, None) => None,
            (was, is) => Some((line, (was.unwrap_or("(end)"), is.unwrap_or("(end)")))),
        })
        .find(|(_, (was, is))| was != is)
}
