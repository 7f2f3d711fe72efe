//! A guest's vhostuser interfaces, from libvirt's XML.

use anyhow::bail;
use quick_xml::XmlVersion;
use quick_xml::events::{BytesStart, Event};
use quick_xml::name::{Namespace, ResolveResult};
use quick_xml::reader::NsReader;
use std::collections::HashMap;
use std::path::PathBuf;

/// The namespace of Fairlane's own elements in `<metadata>`.
const OURS: &str = "urn:fairlane:1";

/// A vhostuser interface.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Interface {
    /// The path of its socket.
    pub(super) socket: PathBuf,
    /// Whether QEMU listens on it.
    connect: bool,
    queues: Option<String>,
    packed: bool,
    /// Limits, as keys of a policy and their values.
    limits: Vec<(String, String)>,
    /// Further keys, which precede the limits.
    own: Vec<(String, String)>,
}

impl Interface {
    /// The keys of its vif.
    pub(super) fn settings(&self) -> Vec<(String, String)> {
        let mut settings = vec![("socket".to_owned(), self.socket.display().to_string())];
        let mut set = |key: &str, value: &str| match settings.iter_mut().find(|(known, _)| known == key) {
            Some((_, known)) => value.clone_into(known),
            None => settings.push((key.to_owned(), value.to_owned())),
        };
        if self.connect {
            set("connect", "true");
        }
        if let Some(queues) = &self.queues {
            set("queues", queues);
        }
        if self.packed {
            set("packed", "true");
        }
        self.limits.iter().chain(&self.own).for_each(|(key, value)| set(key, value));
        settings
    }
}

type Attributes = HashMap<String, String>;

/// The vhostuser interfaces of a guest.
///
/// # Errors
/// The text is not XML, or not of a guest.
pub(super) fn interfaces(xml: &str) -> anyhow::Result<Vec<Interface>> {
    let mut reader = NsReader::from_str(xml);
    let mut path: Vec<String> = Vec::new();
    let mut found: Vec<Interface> = Vec::new();
    let mut present: Option<Interface> = None;
    let mut own: HashMap<String, Vec<(String, String)>> = HashMap::new();
    loop {
        let (namespace, event) = reader.read_resolved_event()?;
        let is_ours = matches!(namespace, ResolveResult::Bound(Namespace(OURS)));
        let (element, is_empty) = match event {
            Event::Start(element) => (element, false),
            Event::Empty(element) => (element, true),
            Event::End(_) => {
                if is_at(&path, &["domain", "devices", "interface"]) {
                    found.extend(present.take());
                }
                path.pop();
                continue;
            }
            Event::Eof if path.is_empty() => break,
            Event::Eof => bail!("it ends within <{}>", path.join("><")),
            _ => continue,
        };
        let attributes = attributes(&element)?;
        path.push(element.local_name().into_inner().to_owned());
        if path[0] != "domain" {
            bail!("it is a <{}>, not a <domain>", path[0]);
        }
        if is_ours && is_at(&path, &["domain", "metadata", "vif"]) {
            let mut attributes = attributes.clone();
            let Some(name) = attributes.remove("name") else { bail!("<vif> of {OURS} needs a name") };
            let mut keys: Vec<_> = attributes.into_iter().filter(|(key, _)| !key.starts_with("xmlns")).collect();
            keys.sort();
            own.insert(name, keys);
        }
        if is_at(&path, &["domain", "devices", "interface"])
            && attributes.get("type").is_some_and(|kind| kind == "vhostuser")
        {
            present = Some(Interface::default());
        }
        if let (Some(interface), Some(inner)) = (&mut present, path.get(3..)) {
            let inner: Vec<&str> = inner.iter().map(String::as_str).collect();
            interface.take(&inner, &attributes)?;
        }
        if is_empty {
            path.pop();
        }
    }
    for interface in &mut found {
        let name = interface.socket.file_stem().unwrap_or_default().to_string_lossy();
        interface.own = own.remove(&*name).unwrap_or_default();
    }
    Ok(found)
}

impl Interface {
    /// Takes what an element within the interface says.
    fn take(&mut self, path: &[&str], attributes: &Attributes) -> anyhow::Result<()> {
        let is = |key: &str, value: &str| attributes.get(key).is_some_and(|given| given == value);
        match path {
            ["source"] => {
                self.socket = attributes.get("path").map(PathBuf::from).unwrap_or_default();
                self.connect = is("mode", "server");
            }
            ["driver"] => {
                self.queues = attributes.get("queues").cloned();
                self.packed = is("packed", "on");
            }
            // As its guest sees it: what comes in is received.
            ["bandwidth", "inbound"] => self.limit("rx_", attributes)?,
            ["bandwidth", "outbound"] => self.limit("", attributes)?,
            _ => {}
        }
        Ok(())
    }

    /// Takes the limits of one direction. libvirt passes rates to tc(8) in its unit `kbps`, of 1000 bytes a second, and bursts in its
    /// `kb`, of 1024 bytes. `peak` is the rate of a burst, which has no limit of its own here.
    fn limit(&mut self, direction: &str, attributes: &Attributes) -> anyhow::Result<()> {
        let number = |key: &str| -> anyhow::Result<Option<u64>> {
            let Some(text) = attributes.get(key) else { return Ok(None) };
            match text.parse::<u32>() {
                Ok(number) => Ok(Some(number.into()).filter(|number| *number > 0)),
                Err(_) => bail!("{key} of <bandwidth> must be a whole number, not {text:?}"),
            }
        };
        let mut set = |key: &str, value: String| self.limits.push((format!("{direction}{key}"), value));
        if let Some(floor) = number("floor")? {
            set("min_rate", format!("{}kbit/s", floor * 8));
        }
        if let Some(average) = number("average")? {
            set("max_rate", format!("{}kbit/s", average * 8));
            if let Some(burst) = number("burst")? {
                // At least a frame passes at once.
                set("burst", format!("{}KiB", burst.max(2)));
            }
        }
        Ok(())
    }
}

fn is_at(path: &[String], place: &[&str]) -> bool {
    path.iter().map(String::as_str).eq(place.iter().copied())
}

fn attributes(element: &BytesStart<'_>) -> anyhow::Result<Attributes> {
    let mut all = Attributes::new();
    for attribute in element.attributes() {
        let attribute = attribute?;
        let key = attribute.key.into_inner().to_owned();
        all.insert(key, attribute.normalized_value(XmlVersion::Implicit1_0)?.into_owned());
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WEB: &str = r#"<?xml version="1.0"?>
<domain type='qemu' id='2'>
  <name>web</name>
  <metadata>
    <fl:vif xmlns:fl="urn:fairlane:1" name="web" weight="300" max_rate="2Mbit/s" link="dmz"/>
    <other:vif xmlns:other="urn:other" name="web" weight="1"/>
  </metadata>
  <devices>
    <interface type='vhostuser'>
      <mac address='52:54:00:12:34:56'/>
      <source type='unix' path='/run/fairlane/web.sock' mode='client'><reconnect enabled='yes' timeout='1'/></source>
      <bandwidth>
        <inbound average='1000' peak='5000' floor='200' burst='1024'/>
        <outbound average='128' peak='256' burst='1'/>
      </bandwidth>
      <model type='virtio'/>
      <driver queues='4' packed='on'><host gso='off'/></driver>
    </interface>
    <interface type='network'><source network='default'/><bandwidth><inbound average='x'/></bandwidth></interface>
    <interface type='vhostuser'><source type='unix' path='/run/fairlane/a&amp;b.sock' mode='server'/></interface>
  </devices>
</domain>
"#;

    #[test]
    fn interfaces_have_the_meaning_of_their_xml() {
        let shown = |interface: &Interface| {
            interface.settings().into_iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
        };
        let found = interfaces(WEB).unwrap();
        assert_eq!(
            found.iter().map(shown).collect::<Vec<_>>(),
            [
                "socket=/run/fairlane/web.sock queues=4 packed=true rx_min_rate=1600kbit/s rx_max_rate=8000kbit/s \
                 rx_burst=1024KiB max_rate=2Mbit/s burst=2KiB link=dmz weight=300",
                "socket=/run/fairlane/a&b.sock connect=true"
            ]
        );
        assert_eq!(interfaces("<domain/>").unwrap(), []);
    }

    #[test]
    fn other_xml_is_refused() {
        for (xml, sentence) in [
            ("<network><name>default</name></network>", "it is a <network>, not a <domain>"),
            ("<domain><devices>", "it ends within <domain><devices>"),
            (
                "<domain><devices><interface type='vhostuser'><bandwidth><inbound average='fast'/></bandwidth></interface></devices></domain>",
                "average of <bandwidth> must be a whole number, not \"fast\"",
            ),
            (
                "<domain><metadata><vif xmlns='urn:fairlane:1'/></metadata></domain>",
                "<vif> of urn:fairlane:1 needs a name",
            ),
        ] {
            assert_eq!(interfaces(xml).unwrap_err().to_string(), sentence);
        }
        interfaces("<domain></devices>").unwrap_err();
        assert_eq!(interfaces("").unwrap(), []);
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text: String, place: prop::sample::Index, piece in "[<>/&'\"a=]{0,3}") {
            let _ = interfaces(&text);
            let mut damaged = WEB.to_owned();
            damaged.insert_str(place.index(WEB.len()), &piece);
            let _ = interfaces(&damaged);
        }
    }
}
