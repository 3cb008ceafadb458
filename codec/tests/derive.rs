//! Types that `#[ibex::message]` and `#[derive(ibex::Schema)]` accept.

extern crate self as ibex;
pub use ibex_codec::{self as codec, Schema, message, rkyv};

mod support;

use ibex_codec::{Codec, Rkyv, SchemaInfo};

use support::encode;

/// The ibex crate under another name, as in a crate that re-exports it.
mod reexported {
    pub(crate) mod inner {
        pub(crate) use ibex_codec::{self as codec, Schema, rkyv};
    }
}

#[ibex_codec::message(crate = crate::reexported::inner)]
struct Elsewhere {
    value: u32,
}

#[derive(ibex::Schema)]
#[ibex(crate = reexported::inner)]
#[allow(dead_code)]
struct SchemaElsewhere {
    value: u32,
}

#[test]
fn the_crate_may_be_somewhere_else() {
    encode::<Rkyv, _>(&Elsewhere { value: 3 })
        .read::<Rkyv, Elsewhere, _>(|view| assert_eq!(view.value, 3))
        .unwrap();
    assert_eq!(
        SchemaInfo::of::<SchemaElsewhere>("test", &[]).fingerprint,
        SchemaInfo::of::<Elsewhere>("test", &[]).fingerprint,
    );
}

/// Attributes of rkyv stand at their usual places.
#[ibex::message]
#[rkyv(derive(Debug), compare(PartialEq), archived = ReadPoint)]
#[derive(Debug)]
struct Point {
    coordinates: [u8; 2],
    label: Option<String>,
}

#[test]
fn attributes_of_rkyv_pass_through() {
    let point = Point {
        coordinates: [1, 2],
        label: Some("p".to_owned()),
    };
    encode::<Rkyv, _>(&point)
        .read::<Rkyv, Point, _>(|view: &ReadPoint| {
            assert!(*view == point);
            assert!(format!("{view:?}").starts_with("ReadPoint"));
        })
        .unwrap();
}

#[ibex::message]
struct Matrix<T: Copy, const N: usize = 2>
where
    T: Default,
{
    cells: [[T; N]; N],
    #[rkyv(with = rkyv::with::Map<rkyv::with::AsBox>)]
    label: Option<String>,
}

#[test]
fn generic_messages_are_described_as_instantiated() {
    let matrix = Matrix {
        cells: [[1_u8, 2], [3, 4]],
        label: None,
    };
    encode::<Rkyv, _>(&matrix)
        .read::<Rkyv, Matrix<u8>, _>(|view| assert_eq!(view.cells, [[1, 2], [3, 4]]))
        .unwrap();
    assert_eq!(
        SchemaInfo::of::<Matrix<u8>>("test", &[]).text,
        "test: Matrix { cells: [[u8; 2]; 2], label: Map<AsBox><Option<String>> }"
    );
}

/// A macro may make a message, and its names must not collide with generated ones.
macro_rules! make_message {
    ($name:ident { $($field:ident: $ty:ty),* }) => {
        #[ibex::message]
        struct $name { to: u8, fields: u8, $($field: $ty),* }
    };
}
make_message!(Made { variants: Vec<u8>, _fields: u16 });

#[test]
fn names_of_the_generated_code_are_free_for_fields() {
    assert_eq!(
        SchemaInfo::of::<Made>("test", &[]).text,
        "test: Made { to: u8, fields: u8, variants: Vec<u8>, _fields: u16 }"
    );
    let made = Made {
        to: 1,
        fields: 2,
        variants: vec![3],
        _fields: 4,
    };
    encode::<Rkyv, _>(&made)
        .read::<Rkyv, Made, _>(|view| assert_eq!(view._fields, 4))
        .unwrap();
}

#[derive(ibex::Schema)]
#[allow(dead_code)]
struct Borrowed<'a, T: ?Sized> {
    text: &'a str,
    value: &'a T,
}

#[derive(ibex::Schema)]
#[allow(dead_code)]
enum Never {}

#[derive(ibex::Schema)]
struct Unit;

#[test]
fn borrows_and_empty_types_have_schemas() {
    assert_eq!(
        SchemaInfo::of::<Borrowed<'_, [u8]>>("test", &[]).text,
        "test: Borrowed { text: String, value: Vec<u8> }"
    );
    assert_eq!(SchemaInfo::of::<Unit>("test", &[]).text, "test: Unit");
    assert_eq!(SchemaInfo::of::<Never>("test", &[]).text, "test: Never");
}

/// A function that is generic over the message needs the codec as its only bound.
fn alignment_of<T>() -> usize
where
    Rkyv: Codec<T>,
{
    <Rkyv as Codec<T>>::alignment()
}

#[test]
fn generic_code_needs_one_bound() {
    assert_eq!(alignment_of::<Made>(), 16);
}

/// Types that contain themselves, by name, as `Self`, in what they share and with a parameter.
mod recursive {
    use std::{collections::BTreeMap, sync::Arc};

    use super::ibex;

    #[ibex::message]
    pub(super) enum Tree {
        Leaf(u64),
        Branch(Vec<Tree>),
        Named {
            parts: BTreeMap<String, Self>,
            note: Option<String>,
        },
    }

    #[ibex::message]
    pub(super) struct List {
        pub(super) value: u32,
        pub(super) next: Option<Box<Self>>,
    }

    #[ibex::message]
    pub(super) struct Shared {
        pub(super) name: String,
        pub(super) parts: Vec<Arc<Shared>>,
    }

    #[ibex::message]
    pub(super) struct Of<T> {
        pub(super) value: T,
        pub(super) next: Option<Box<Of<T>>>,
    }

    #[ibex::message(recursive)]
    pub(super) enum Expr {
        Number(u64),
        Call(Call),
        Named(Arc<Call>, [Option<Box<Call>>; 1]),
    }

    #[ibex::message]
    pub(super) struct Call {
        pub(super) function: String,
        pub(super) arguments: Vec<Expr>,
    }

    /// The type's own bounds are given here.
    #[ibex::message]
    #[rkyv(
        serialize_bounds(__S: rkyv::ser::Writer, __S::Error: rkyv::rancor::Source),
        deserialize_bounds(__D::Error: rkyv::rancor::Source),
        bytecheck(bounds(__C: rkyv::validation::ArchiveContext, __C::Error: rkyv::rancor::Source)),
    )]
    pub(super) struct ByHand {
        #[rkyv(omit_bounds)]
        pub(super) next: Option<Box<ByHand>>,
    }
}

#[test]
fn types_may_contain_each_other() {
    use recursive::{ArchivedExpr, Call, Expr};

    let inner = || Call {
        function: "neg".to_owned(),
        arguments: vec![Expr::Number(7)],
    };
    let outer = Call {
        function: "add".to_owned(),
        arguments: vec![
            Expr::Call(inner()),
            Expr::Named(inner().into(), [Some(Box::new(inner()))]),
        ],
    };
    encode::<Rkyv, _>(&outer)
        .read::<Rkyv, Call, _>(|view| {
            let [
                ArchivedExpr::Call(call),
                ArchivedExpr::Named(shared, [boxed]),
            ] = &*view.arguments
            else {
                panic!("other variants");
            };
            let boxed = boxed.as_ref().expect("it was sent");
            for inner in [call, shared.get(), boxed.get()] {
                assert_eq!(inner.function, "neg");
                let [ArchivedExpr::Number(number)] = &*inner.arguments else {
                    panic!("another variant");
                };
                assert_eq!(number.to_native(), 7);
            }
        })
        .unwrap();
    // The types can be described in the other order, too.
    assert!(SchemaInfo::of::<Expr>("test", &[]).text.contains("Call"));
}

#[test]
fn a_type_may_contain_itself() {
    use recursive::{ArchivedList, ArchivedTree, ByHand, List, Of, Shared, Tree};
    use std::sync::Arc;

    let parts = [("a".to_owned(), Tree::Leaf(2))].into();
    let named = Tree::Named { parts, note: None };
    let tree = Tree::Branch(vec![Tree::Leaf(1), named]);
    encode::<Rkyv, _>(&tree)
        .read::<Rkyv, Tree, _>(|view| {
            let ArchivedTree::Branch(parts) = view else {
                panic!("another variant");
            };
            assert!(matches!(parts[0], ArchivedTree::Leaf(value) if value.to_native() == 1));
            let ArchivedTree::Named { parts, .. } = &parts[1] else {
                panic!("another variant");
            };
            assert!(matches!(parts["a"], ArchivedTree::Leaf(value) if value.to_native() == 2));
        })
        .unwrap();

    let next = Some(Box::new(List {
        value: 2,
        next: None,
    }));
    encode::<Rkyv, _>(&List { value: 1, next })
        .read::<Rkyv, List, _>(|view: &ArchivedList| {
            let next = view.next.as_ref().unwrap();
            assert_eq!((view.value.to_native(), next.value.to_native()), (1, 2));
            let owned: List = rkyv::deserialize::<_, rkyv::rancor::Error>(view).unwrap();
            assert_eq!(owned.next.map(|next| next.value), Some(2));
        })
        .unwrap();

    let leaf = Arc::new(Shared {
        name: "leaf".to_owned(),
        parts: Vec::new(),
    });
    let root = Shared {
        name: "root".to_owned(),
        parts: vec![leaf.clone(), leaf],
    };
    encode::<Rkyv, _>(&root)
        .read::<Rkyv, Shared, _>(|view| assert_eq!(view.parts[1].name, "leaf"))
        .unwrap();

    let next = Some(Box::new(Of {
        value: 2_u64,
        next: None,
    }));
    encode::<Rkyv, _>(&Of { value: 1_u64, next })
        .read::<Rkyv, Of<u64>, _>(|view| assert_eq!(view.next.as_ref().unwrap().value, 2))
        .unwrap();

    let by_hand = ByHand {
        next: Some(Box::new(ByHand { next: None })),
    };
    encode::<Rkyv, _>(&by_hand)
        .read::<Rkyv, ByHand, _>(|view| assert!(view.next.is_some()))
        .unwrap();
}
