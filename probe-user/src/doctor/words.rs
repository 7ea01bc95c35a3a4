//! What the field's words mean, for whoever reads a page without having grown up with them.

use super::rule::Rule;

/// A word as it stands in texts, and its meaning.
const WORDS: &[(&str, &str)] = &[
    (
        "ACK timeout",
        "how long a sender waits for an acknowledgement before it sends again: 4.096 µs × 2^timeout",
    ),
    ("CAS", "compare-and-swap: writes a word only if it still holds what is expected"),
    ("completion queue", "the ring in memory in which the device tells what is done (CQ)"),
    ("completion channel", "a file that becomes readable when an armed completion queue gets an entry"),
    ("context", "what the device must know of an object to work on it, such as the state of a queue pair"),
    ("datagrams", "messages of queue pairs without a connection (UD), to any peer, each in one packet"),
    ("DC", "dynamically connected: a transport of some NICs, one queue pair for many peers"),
    ("DCQCN", "congestion control of RoCE NICs: senders slow down when packets were marked"),
    ("DMA", "the device reads or writes memory without the processor"),
    ("dma-buf", "the kernel's way of handing memory of one device, such as a GPU, to another"),
    ("doorbell", "a write to the device that tells it of new requests"),
    ("DSCP", "a field of each IP packet by which switches sort it"),
    ("ECMP", "switches spread connections over paths of equal length, each connection over one of them"),
    ("ECN", "marks that switches set on packets before their queues overflow"),
    ("errno", "number of the error a call failed with"),
    ("fork protection", "keeps memory that a device writes to from being moved when the process forks"),
    ("GID", "a port's address; one port has several, and requests name one by its index"),
    ("inline", "the payload is copied into the request itself, instead of being fetched by the device"),
    ("IOMMU", "translates the addresses that devices use, page by page"),
    ("lkey", "the number by which a request names registered memory of its own side"),
    ("memory window", "a right to a part of a region, given and withdrawn by itself"),
    ("NUMA", "each processor socket has memory and slots of its own, and those of the others are farther"),
    (
        "on-demand paging",
        "registered memory that is not pinned: the NIC asks for a page when it needs it (ODP)",
    ),
    ("path MTU", "largest payload of one packet of a connection"),
    ("PFC", "priority flow control: a switch that runs full stops the sender"),
    ("pinned", "kept at its place in memory, neither moved nor swapped out, so that a device can reach it"),
    ("protection domain", "what memory and queue pairs must have in common to be used together"),
    ("queue pair", "one end of a connection: a queue of sends and a queue of receives (QP)"),
    ("post to reap", "from the call that posts a request to the poll that takes its completion"),
    ("QPN", "number of a queue pair"),
    ("READ", "fetches memory of the peer, without its program"),
    ("READs", "requests that fetch memory of the peer, without its program"),
    ("region", "a range of memory that was registered"),
    ("rkey", "the number by which the peer names registered memory of this side"),
    ("RNR", "receiver not ready: a message came and no receive was posted"),
    ("RTR", "ready to receive: the state in which a queue pair takes messages"),
    ("RTS", "ready to send: the state in which a queue pair sends"),
    ("SGE", "scatter/gather element: address, length and lkey of one piece of a payload"),
    ("SGEs", "scatter/gather elements: address, length and lkey of each piece of a payload"),
    ("signalled", "the request asks for an entry in the completion queue"),
    ("SRQ", "shared receive queue: one queue of receives for several queue pairs"),
    ("traffic class", "a field of each packet by which switches sort it, such as into a lossless queue"),
    ("translation", "where a page of registered memory lies; the device keeps some and fetches others"),
    ("translations", "where pages of registered memory lie; the device keeps some and fetches others"),
    ("UD", "unreliable datagram: a queue pair without a connection"),
    ("WRITE", "stores into memory of the peer, without its program"),
    ("WRITEs", "requests that store into memory of the peer, without its program"),
];

/// The words of a rule's page that not everybody knows, with their meaning.
pub(super) fn words_of(rule: &Rule) -> Vec<(&'static str, &'static str)> {
    words_in(&[rule.title, rule.looks_at, rule.cause, rule.remedy, rule.unless].join(" "))
}

/// The words in a text that not everybody knows, with their meaning.
pub(super) fn words_in(text: &str) -> Vec<(&'static str, &'static str)> {
    let stand = WORDS.iter().copied().filter(|(word, _)| stands_in(text, word));
    // A singular beside its plural says nothing new.
    let plural = |word: &str| WORDS.iter().any(|(other, _)| other.strip_suffix('s') == Some(word));
    let words: Vec<_> = stand.collect();
    words
        .iter()
        .copied()
        .filter(|(word, _)| !plural(word) || !words.iter().any(|(w, _)| w.strip_suffix('s') == Some(*word)))
        .collect()
}

/// Whether the word stands in the text by itself, a plural `s` aside where the word is no abbreviation.
fn stands_in(text: &str, word: &str) -> bool {
    let part_of_a_word = |c: char| c.is_alphanumeric() || c == '_';
    let phrase = word.chars().any(char::is_lowercase) && !word.ends_with('s');
    text.match_indices(word).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let mut after = text[at + word.len()..].chars().peekable();
        if phrase {
            after.next_if_eq(&'s');
        }
        !before.is_some_and(part_of_a_word) && !after.next().is_some_and(part_of_a_word)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_counts_where_it_stands_by_itself() {
        assert!(stands_in("the queue pairs that", "queue pair"));
        assert!(stands_in("(RNR).", "RNR"));
        assert!(!stands_in("min_rnr IBV_RNR_X RNRS", "RNR"));
        assert!(!stands_in("unsignalled", "signalled"));
        assert!(!stands_in("ibv_reg_mr", "region"));
    }

    #[test]
    fn every_word_is_used_on_some_page() {
        let used: std::collections::BTreeSet<&str> =
            super::super::rules::RULES.iter().flat_map(|rule| words_of(rule)).map(|(word, _)| word).collect();
        // What evidence alone says, which no page has.
        let evidence = ["QPN"];
        let idle: Vec<&str> = WORDS
            .iter()
            .map(|(word, _)| *word)
            .filter(|word| !used.contains(word) && !evidence.contains(word))
            .collect();
        assert!(idle.is_empty(), "{idle:?}");
    }
}
