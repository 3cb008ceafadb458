//! Expands `#[ibex::message]`: the item as it is, with the derives above it.

use proc_macro2::TokenStream;
use quote::quote;
use syn::parse::Parser;
use syn::{Error, Item, Result};

use crate::attributes::Container;

/// The expansion. After an error the item is still there, so that the compiler
/// complains about the message and not about every use of the type as well.
pub(crate) fn expand(arguments: TokenStream, item: TokenStream) -> TokenStream {
    match prefix(arguments, item.clone()) {
        Ok(prefix) => quote!(#prefix #item),
        Err(error) => {
            let error = error.into_compile_error();
            quote!(#error #item)
        }
    }
}

fn prefix(arguments: TokenStream, item: TokenStream) -> Result<TokenStream> {
    let mut container = Container::new();
    syn::meta::parser(|meta| container.parse(&meta)).parse2(arguments)?;
    match syn::parse2::<Item>(item)? {
        Item::Struct(_) | Item::Enum(_) => {}
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
    }

    let krate = &container.krate;
    let ignore_serde = container
        .ignores_serde
        .then(|| quote!(#[ibex(ignore_serde)]));
    Ok(quote! {
        #[derive(
            #krate::rkyv::Archive,
            #krate::rkyv::Serialize,
            #krate::rkyv::Deserialize,
            #krate::Schema,
        )]
        #[rkyv(crate = #krate::rkyv)]
        #[ibex(crate = #krate)]
        #ignore_serde
    })
}
