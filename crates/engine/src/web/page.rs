//! The live page: one text, whose script and style a browser takes only as they are here.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// Its media type.
pub(super) const KIND: &str = "text/html; charset=utf-8";

const HTML: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
const SCRIPTS: [&str; 3] =
    [include_str!("page/figures.js"), include_str!("page/charts.js"), include_str!("page/page.js")];

/// The page as it is sent.
pub(super) struct Page {
    text: Arc<str>,
    rules: String,
}

impl Page {
    pub(super) fn new() -> Page {
        let script = SCRIPTS.concat();
        let text = HTML.replacen("{{style}}", STYLE, 1).replacen("{{script}}", &script, 1).into();
        // CSP level 3: nothing but this script and this style, which may ask this server.
        let rules = format!(
            "Content-Security-Policy: default-src 'none'; script-src '{}'; style-src '{}'; connect-src 'self'; \
             img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
            hash(&script),
            hash(STYLE)
        );
        Page { text, rules }
    }

    /// The page.
    pub(super) fn text(&self) -> Arc<str> {
        self.text.clone()
    }

    /// The header field with what it may do.
    pub(super) fn rules(&self) -> &str {
        &self.rules
    }
}

fn hash(text: &str) -> String {
    format!("sha256-{}", BASE64_STANDARD.encode(Sha256::digest(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_needs_nothing_else() {
        let page = Page::new();
        for part in ["{{", "src=", "href=\"http", "@import", "url(http", " style=", "onclick="] {
            assert!(!page.text.contains(part), "{part}");
        }
        assert!(page.text.contains(&format!("<style>{STYLE}</style>")) && !page.rules.contains("unsafe"));
    }
}
