//! A list whose elements take no bytes: a peer could state any number of them.

use ibex_codec::MessagePart;

const _: bool = <Vec<()> as MessagePart>::IS_RECURSIVE;

fn main() {}
