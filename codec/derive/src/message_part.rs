//! Implements `MessagePart` for a message, and refuses what rkyv would cut.

use proc_macro2::{Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{
    Data, DeriveInput, Error, Fields, GenericArgument, Ident, PathArguments, Result, Type,
    parse_quote,
};

use crate::attributes::{Container, Field};

/// Refuses a field whose type names `usize` or the like, unless one of rkyv's wrappers stores it.
/// The compiler refuses other names of these types by the trait; this message is at the place where
/// the type is written.
pub(crate) fn refuse_word_size(field: &syn::Field) -> Result<()> {
    let without_serde = Container {
        ignores_serde: true,
        ..Container::of_message()
    };
    let has_wrapper = Field::of(field, &without_serde)?.wrapper.is_some();
    match word_size(&field.ty) {
        Some((name, better)) if !has_wrapper => Err(Error::new(
            name.span(),
            format!(
                "rkyv stores `{name}` in 32 bits and would cut larger values; use `{better}`, or \
                 send the type by the codec `Serde`"
            ),
        )),
        _ => Ok(()),
    }
}

/// Returns the first type of the machine's word size in `ty`, and the one to use in its place.
fn word_size(ty: &Type) -> Option<(&Ident, &'static str)> {
    match ty {
        Type::Path(path) => path.path.segments.iter().find_map(|segment| {
            let named = REPLACEMENTS.iter().find(|(name, _)| segment.ident == name);
            if let Some((_, better)) = named {
                return Some((&segment.ident, *better));
            }
            // A marker is not stored.
            let PathArguments::AngleBracketed(arguments) = &segment.arguments else {
                return None;
            };
            let arguments = arguments
                .args
                .iter()
                .filter(|_| segment.ident != "PhantomData");
            arguments
                .filter_map(|argument| match argument {
                    GenericArgument::Type(ty) => word_size(ty),
                    _ => None,
                })
                .next()
        }),
        Type::Array(array) => word_size(&array.elem),
        Type::Slice(slice) => word_size(&slice.elem),
        Type::Tuple(tuple) => tuple.elems.iter().find_map(word_size),
        Type::Reference(reference) => word_size(&reference.elem),
        Type::Paren(paren) => word_size(&paren.elem),
        Type::Group(group) => word_size(&group.elem),
        _ => None,
    }
}

const REPLACEMENTS: [(&str, &str); 4] = [
    ("usize", "u64"),
    ("isize", "i64"),
    ("NonZeroUsize", "NonZeroU64"),
    ("NonZeroIsize", "NonZeroI64"),
];

/// The implementation of `MessagePart`, in which the compiler checks every field.
pub(crate) fn implementation(input: &DeriveInput, container: &Container) -> Result<TokenStream> {
    let (krate, ident) = (&container.krate, &input.ident);
    let mut generics = input.generics.clone();
    // A name stands for parts that nothing is known of.
    let facts = match container.schema_name.is_some() || container.is_refused {
        true => None,
        false => {
            for parameter in generics.type_params_mut() {
                parameter
                    .bounds
                    .push(parse_quote!(#krate::codec::MessagePart));
            }
            Some(facts(&input.data, container)?)
        }
    };
    let (impl_generics, type_generics, where_clause) = generics.split_for_impl();
    Ok(quote! {
        #[automatically_derived]
        impl #impl_generics #krate::codec::MessagePart for #ident #type_generics #where_clause {
            #facts
        }
    })
}

/// The trait's constants, from those of the fields. Every circle of types has a field that is
/// marked as recursive. The constants of such a field are not used, so the evaluation ends.
fn facts(data: &Data, container: &Container) -> Result<TokenStream> {
    let (all_fields, has_tag): (Vec<&Fields>, bool) = match data {
        Data::Struct(data) => (vec![&data.fields], false),
        Data::Enum(data) => {
            let variants = data.variants.iter();
            (variants.map(|variant| &variant.fields).collect(), true)
        }
        Data::Union(_) => (Vec::new(), true),
    };
    let mut is_recursive = quote!(false);
    let mut takes_bytes = quote!(#has_tag);
    for field in all_fields.into_iter().flatten() {
        let field = Field::of(field, container)?;
        let Some(ty) = field.archived_as else {
            // What is behind a name may be anything.
            if !field.is_left_out {
                is_recursive.extend(quote!(| true));
                takes_bytes.extend(quote!(| true));
            }
            continue;
        };
        let span = Span::call_site().located_at(ty.span());
        let krate = &container.krate;
        if field.is_recursive {
            is_recursive.extend(quote_spanned! { span=>
                | {
                    const fn check<T: #krate::codec::MessagePart + ?Sized>() {}
                    check::<#ty>();
                    true
                }
            });
            takes_bytes.extend(quote!(| true));
        } else {
            is_recursive.extend(quote_spanned! { span=>
                | <#ty as #krate::codec::MessagePart>::IS_RECURSIVE
            });
            takes_bytes.extend(quote_spanned! { span=>
                | <#ty as #krate::codec::MessagePart>::TAKES_BYTES
            });
        }
    }
    Ok(quote! {
        const IS_RECURSIVE: bool = #is_recursive;
        const TAKES_BYTES: bool = #takes_bytes;
    })
}
