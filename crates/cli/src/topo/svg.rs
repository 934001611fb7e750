//! The picture: a box for each root bus, a line for each node in it, a colour for each device.

use std::fmt::{Arguments, Write as _};

use super::tree::{Root, Tree, What};

/// The picture as an SVG document.
pub(super) fn draw(tree: &Tree) -> String {
    let mut body = String::new();
    let (mut left, mut top, mut deepest, mut width) = (MARGIN, MARGIN, 0, 0);
    for (place, root) in tree.roots.iter().enumerate() {
        if place > 0 && place.is_multiple_of(COLUMNS) {
            (left, top, deepest) = (MARGIN, top + deepest + MARGIN, 0);
        }
        let height = HEAD + LINE * root.nodes.len();
        draw_root(&mut body, root, left, top, height);
        deepest = deepest.max(height);
        left += WIDTH + MARGIN;
        width = width.max(left);
    }
    let height = top + deepest + MARGIN;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{body}</svg>\n"
    )
}

fn draw_root(body: &mut String, root: &Root, left: usize, top: usize, height: usize) {
    put(
        body,
        format_args!(
            "<rect x=\"{left}\" y=\"{top}\" width=\"{WIDTH}\" height=\"{height}\" rx=\"4\" fill=\"#f6f6f6\" stroke=\"#888\"/>\n\
         <text x=\"{}\" y=\"{}\" font-weight=\"bold\">{}</text>\n",
            left + PAD,
            top + 15,
            escaped(&root.title)
        ),
    );
    for (line, node) in root.nodes.iter().enumerate() {
        let (x, y) = (left + PAD + INDENT * node.depth, top + HEAD + LINE * line);
        let fill = match node.what {
            What::Bridge => "#ffffff".to_owned(),
            What::Gpu => "#c9d8a8".to_owned(),
            What::Nic(None) => "#d0d0d0".to_owned(),
            // Hues a golden section apart differ most between neighbours.
            What::Nic(Some(device)) => format!("hsl({}, 70%, 80%)", device * 137 % 360),
        };
        let width = (left + WIDTH - PAD).saturating_sub(x);
        put(
            body,
            format_args!(
                "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{}\" rx=\"2\" fill=\"{fill}\" stroke=\"#aaa\"/>\n\
             <text x=\"{}\" y=\"{}\">{}</text>\n",
                LINE - 3,
                x + 5,
                y + 12,
                escaped(&node.label)
            ),
        );
    }
}

fn put(body: &mut String, text: Arguments<'_>) {
    let written = body.write_fmt(text);
    debug_assert!(written.is_ok(), "writing to a string never fails");
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// The number of boxes in a row.
const COLUMNS: usize = 4;
/// The measures of the picture, in pixels.
const WIDTH: usize = 380;
const MARGIN: usize = 14;
const PAD: usize = 8;
const INDENT: usize = 14;
const HEAD: usize = 24;
const LINE: usize = 20;

#[cfg(test)]
mod tests {
    use super::super::tree::Node;
    use super::*;

    #[test]
    fn a_picture_has_a_box_for_each_bus_and_each_node_and_no_bare_letter_of_markup() {
        let node =
            |device| Node { depth: 1, label: "NIC a<b>&c".to_owned(), what: What::Nic(device) };
        let root = || Root { title: "root bus".to_owned(), nodes: vec![node(None), node(Some(1))] };
        let picture = draw(&Tree { roots: (0..5).map(|_| root()).collect() });
        assert_eq!(picture.matches("<rect ").count(), 1 + 5 * 3);
        assert_eq!(picture.matches("<text ").count(), picture.matches("</text>").count());
        assert!(picture.contains("NIC a&lt;b&gt;&amp;c") && !picture.contains("a<b>"));
        assert!(picture.ends_with("</svg>\n"));
    }
}
