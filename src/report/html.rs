//! A plan as one page for a browser: `waste dump --html`.
//!
//! | file | holds |
//! |---|---|
//! | `data` | the plan as JSON, layer by layer |
//! | `fold` | equal layers once |
//! | `profile` | measured times beside it |
//! | `page.html`, `page.css` | the frame and its looks |
//! | `*.js` | what draws the graph, the memory map and the tables from the JSON |
//!
//! Invariants
//! - the page needs nothing but itself: no network, no font, no library;
//! - the same plan and profile give the same bytes: nothing comes from a clock;
//! - names of the model reach the page as JSON text with `<`, `>` and `&` escaped, and the document as text nodes: a hostile name
//!   stays a name.
//!
//! Deliberately absent: any arithmetic about memory or cost in the page's script: it draws numbers, it does not find them.

mod data;
mod fold;
mod profile;

use waste_plan::schema::Plan;

const FRAME: &str = include_str!("html/page.html");
const STYLE: &str = include_str!("html/page.css");
const SCRIPTS: [&str; 5] = [
    include_str!("html/model.js"),
    include_str!("html/graph.js"),
    include_str!("html/memory.js"),
    include_str!("html/tables.js"),
    include_str!("html/main.js"),
];

/// The page of `plan`; `ir` is its section of that name, `profile` what `waste bench --profile -o json` wrote.
///
/// # Errors
/// A sentence about `profile`, if it cannot be read or is of another plan.
pub fn page(plan: &Plan, ir: &str, profile: Option<&str>) -> Result<String, String> {
    let mut data = data::plan(plan, ir);
    if let Some(text) = profile {
        data["profile"] = profile::read(text, plan)?;
    }
    let parts = [
        ("{{title}}", escape(&plan.model.name)),
        ("{{style}}", STYLE.to_owned()),
        ("{{data}}", escape_json(&data.to_string())),
        ("{{script}}", SCRIPTS.concat()),
    ];
    // Each part is put in once, from left to right, so that no part is searched for the next one's name.
    let (mut out, mut rest) = (String::new(), FRAME);
    for (name, text) in &parts {
        let (before, after) = rest.split_once(name).expect("the frame names every part once, in this order");
        out.push_str(before);
        out.push_str(text);
        rest = after;
    }
    out.push_str(rest);
    Ok(out)
}

/// Text between tags.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// JSON inside a script element: nothing in it can end the element.
fn escape_json(json: &str) -> String {
    json.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}
