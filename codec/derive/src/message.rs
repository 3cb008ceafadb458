//! Expands `#[ibex::message]`: the item with the derives above it. `Schema` comes first, with
//! bounds for the fields. So the compiler names a field's type that has no schema once, before
//! rkyv's derives report it.

use proc_macro2::{Span, TokenStream, TokenTree};
use quote::{ToTokens, quote};
use syn::parse::Parser;
use syn::{Attribute, Error, Fields, GenericParam, Generics, Ident, Item, Result, parse_quote};

use crate::attributes::Container;
use crate::message_part;

/// Expands the attribute. After an error the item is still there, so that the compiler reports the
/// message's error and not every use of the type as well.
pub(crate) fn expand(arguments: TokenStream, item: TokenStream) -> TokenStream {
    match message(arguments, item.clone()) {
        Ok(message) => message,
        Err(error) => {
            let error = error.into_compile_error();
            quote!(#error #item)
        }
    }
}

fn message(arguments: TokenStream, item: TokenStream) -> Result<TokenStream> {
    let mut container = Container::of_message();
    syn::meta::parser(|meta| container.parse(&meta)).parse2(arguments)?;
    let mut item = syn::parse2::<Item>(item)?;
    let (ident, generics, attributes, all_fields) = match &mut item {
        Item::Struct(item) => {
            let fields = vec![&mut item.fields];
            (&item.ident, &item.generics, &item.attrs, fields)
        }
        Item::Enum(item) => {
            let variants = item.variants.iter_mut();
            let fields = variants.map(|variant| &mut variant.fields).collect();
            (&item.ident, &item.generics, &item.attrs, fields)
        }
        Item::Union(item) => {
            return Err(Error::new(
                item.union_token.span,
                "a union cannot be a message: its bytes do not say which field is meant; use an enum",
            ));
        }
        other => {
            return Err(Error::new_spanned(
                other,
                "`#[ibex::message]` goes on a struct or an enum: a message is a value",
            ));
        }
    };

    // The item is expanded all the same, so that its uses are no errors as well.
    let all = all_fields.iter().flat_map(|fields| fields.iter());
    let refusals = all.filter_map(|field| message_part::refuse_word_size(field).err());
    let refusal = refusals.reduce(|mut all, next| {
        all.combine(next);
        all
    });
    let refused = refusal.as_ref().map(|_| quote!(, __refused));
    let refusal = refusal.map(Error::into_compile_error);

    let krate = &container.krate;
    let ignore_serde = container
        .ignores_serde
        .then(|| quote!(#[ibex(ignore_serde)]));
    let schema_name = container
        .schema_name
        .as_ref()
        .map(|name| quote!(#[ibex(schema_name = #name)]));
    let is_recursive = container.is_recursive == Some(true);
    let recursion = Recursion::of(ident, attributes, generics, all_fields, is_recursive);
    let recursion = recursion.bounds(&container);
    Ok(quote! {
        #refusal
        #[derive(
            #krate::Schema,
            #krate::rkyv::Archive,
            #krate::rkyv::Serialize,
            #krate::rkyv::Deserialize,
        )]
        #[rkyv(crate = #krate::rkyv)]
        #[ibex(crate = #krate, __message #refused)]
        #recursion
        #ignore_serde
        #schema_name
        #item
    })
}

fn depends_on(ty: &TokenStream, generics: &Generics) -> bool {
    generics.params.iter().any(|parameter| match parameter {
        GenericParam::Lifetime(_) => true,
        GenericParam::Type(parameter) => names(ty, &parameter.ident),
        GenericParam::Const(parameter) => names(ty, &parameter.ident),
    })
}

/// The way in which a type refers to itself, directly or through others, if it does.
struct Recursion {
    is_recursive: bool,
    is_shared: bool,
}

impl Recursion {
    /// Marks the fields that refer to the type itself, by its name or as `Self`. With
    /// `is_recursive`, also marks all fields whose types may refer to it. rkyv's derives would
    /// otherwise make each implementation demand itself, without an end. Marks other fields that
    /// may name messages as those for which `Schema` gets bounds.
    ///
    /// A type whose attributes mention bounds already stays as it is.
    fn of(
        ident: &Ident,
        attributes: &[Attribute],
        generics: &Generics,
        all_fields: Vec<&mut Fields>,
        is_recursive: bool,
    ) -> Self {
        let mut found = Self {
            is_recursive: false,
            is_shared: false,
        };
        let of_fields = all_fields
            .iter()
            .flat_map(|fields| fields.iter())
            .flat_map(|field| &field.attrs);
        if attributes.iter().chain(of_fields).any(speaks_of_bounds) {
            return found;
        }
        let itself = Ident::new("Self", Span::call_site());
        for field in all_fields.into_iter().flat_map(|fields| fields.iter_mut()) {
            let ty = field.ty.to_token_stream();
            let may_name_messages = !depends_on(&ty, generics) && names_others(&ty);
            if names(&ty, ident) || names(&ty, &itself) || is_recursive && may_name_messages {
                found.is_recursive = true;
                let shared = ["Rc", "Arc"].map(|name| Ident::new(name, Span::call_site()));
                // The macro cannot see the contents of another type.
                found.is_shared |= is_recursive || shared.iter().any(|name| names(&ty, name));
                field.attrs.push(parse_quote!(#[rkyv(omit_bounds)]));
            } else if may_name_messages {
                field.attrs.push(parse_quote!(#[ibex(__bounded)]));
            }
        }
        found
    }

    /// Returns the bounds that rkyv's implementations for vectors, boxes and the like need. The
    /// bounds of the fields would have implied them.
    fn bounds(&self, container: &Container) -> Option<TokenStream> {
        if !self.is_recursive {
            return None;
        }
        let rkyv = &container.krate;
        let rkyv = quote!(#rkyv::rkyv);
        let (sharing, shared, pooling) = match self.is_shared {
            true => (
                quote!(+ #rkyv::ser::Sharing),
                quote!(+ #rkyv::validation::SharedContext),
                quote!(__D: #rkyv::de::Pooling,),
            ),
            false => Default::default(),
        };
        Some(quote! {
            #[rkyv(
                serialize_bounds(
                    __S: #rkyv::ser::Writer + #rkyv::ser::Allocator #sharing,
                    __S::Error: #rkyv::rancor::Source,
                ),
                deserialize_bounds(#pooling __D::Error: #rkyv::rancor::Source),
                bytecheck(bounds(
                    __C: #rkyv::validation::ArchiveContext #shared,
                    __C::Error: #rkyv::rancor::Source,
                )),
            )]
        })
    }
}

/// Tells whether an attribute of rkyv's states bounds.
fn speaks_of_bounds(attribute: &Attribute) -> bool {
    const BOUNDS: [&str; 5] = [
        "omit_bounds",
        "archive_bounds",
        "serialize_bounds",
        "deserialize_bounds",
        "bytecheck",
    ];
    let tokens = attribute.to_token_stream();
    attribute.path().is_ident("rkyv")
        && BOUNDS
            .iter()
            .any(|name| names(&tokens, &Ident::new(name, Span::call_site())))
}

/// Tells whether a type names one that may contain any other, such as a message.
fn names_others(tokens: &TokenStream) -> bool {
    tokens.clone().into_iter().any(|token| match token {
        TokenTree::Ident(ident) => !USUAL.iter().any(|name| ident == name),
        TokenTree::Group(group) => names_others(&group.stream()),
        TokenTree::Punct(_) | TokenTree::Literal(_) => false,
    })
}

/// Names in the types of fields that refer to no message.
#[rustfmt::skip]
const USUAL: [&str; 20] = [
    "u8", "u16", "u32", "u64", "u128", "usize", "i8", "i16", "i32", "i64", "i128", "isize",
    "f32", "f64", "bool", "char", "String", "Vec", "Option", "Box",
];

/// Tells whether a name occurs in the tokens, other than in a path behind another name.
fn names(tokens: &TokenStream, name: &Ident) -> bool {
    let mut colons = 0;
    tokens.clone().into_iter().any(|token| {
        let is_behind_another = colons == 2;
        colons = match &token {
            TokenTree::Punct(punct) if punct.as_char() == ':' => colons + 1,
            _ => 0,
        };
        match token {
            TokenTree::Ident(ident) => ident == *name && !is_behind_another,
            TokenTree::Group(group) => names(&group.stream(), name),
            TokenTree::Punct(_) | TokenTree::Literal(_) => false,
        }
    })
}
