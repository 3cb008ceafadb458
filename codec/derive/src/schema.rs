//! Expands `#[derive(ibex::Schema)]`: calls on a `Describer`, one per field and
//! variant, in the order of the source.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{
    Attribute, Data, DataEnum, DeriveInput, Error, Fields, GenericParam, Lifetime, Result, Type,
    TypeParamBound, WherePredicate, parse_quote,
};

use crate::attributes::{Container, Field};
use crate::{message_part, serde_attributes};

pub(crate) fn expand(item: TokenStream) -> TokenStream {
    syn::parse2(item)
        .and_then(implementation)
        .unwrap_or_else(Error::into_compile_error)
}

fn implementation(input: DeriveInput) -> Result<TokenStream> {
    let container = Container::of(&input.attrs)?;
    if !container.ignores_serde && container.schema_name.is_none() {
        serde_attributes::check_container(&input.attrs)?;
    }
    let krate = &container.krate;
    let ident = &input.ident;
    let name = ident.unraw().to_string();

    let description = match (&container.schema_name, &input.data) {
        (Some(name), _) => quote!(to.named(#name);),
        (None, Data::Struct(data)) => {
            let fields = fields(&data.fields, &container)?;
            quote!(to.structure::<Self>(#name, |_fields| { #fields });)
        }
        (None, Data::Enum(data)) => {
            let variants = variants(data, &input.attrs, &container)?;
            quote!(to.enumeration::<Self>(#name, |_variants| { #variants });)
        }
        (None, Data::Union(data)) => {
            return Err(Error::new(
                data.union_token.span,
                "a union has no schema: its bytes do not say which field is meant; use an enum",
            ));
        }
    };

    let with_lifetime = with_lifetime(&input, &container);
    let message_part = match container.is_message {
        true => Some(message_part::implementation(&input, &container)?),
        false => None,
    };
    let mut generics = input.generics.clone();
    if container.schema_name.is_none() {
        for parameter in generics.type_params_mut() {
            parameter.bounds.push(parse_quote!(#krate::codec::Schema));
        }
    }
    let bounds = bounds(&input.data, &container)?;
    if !bounds.is_empty() {
        generics.make_where_clause().predicates.extend(bounds);
    }
    let (impl_generics, type_generics, where_clause) = generics.split_for_impl();
    Ok(quote! {
        #[automatically_derived]
        #[allow(trivial_bounds)]
        impl #impl_generics #krate::codec::Schema for #ident #type_generics #where_clause {
            fn describe(to: &mut #krate::codec::Describer) {
                #description
            }
        }

        #with_lifetime
        #message_part
    })
}

/// Implements `WithLifetime` for a type that has lifetimes, so that it can be received borrowed.
///
/// A type with more bounds on a lifetime than what outlives it may not exist for every other
/// lifetime, so it gets no implementation.
fn with_lifetime(input: &DeriveInput, container: &Container) -> Option<TokenStream> {
    input.generics.lifetimes().next()?;
    let mut generics = input.generics.clone();
    let any = Lifetime::new("'__any", Span::mixed_site());
    let mut arguments = Vec::new();
    for parameter in &mut generics.params {
        arguments.push(match parameter {
            GenericParam::Lifetime(_) => quote!(#any),
            GenericParam::Const(parameter) => parameter.ident.to_token_stream(),
            GenericParam::Type(parameter) => {
                if parameter.bounds.iter().any(names_lifetime) {
                    return None;
                }
                parameter.bounds.push(parse_quote!('static));
                parameter.ident.to_token_stream()
            }
        });
    }
    let clauses = generics
        .where_clause
        .iter()
        .flat_map(|clause| &clause.predicates);
    for clause in clauses {
        if let WherePredicate::Type(clause) = clause
            && (clause.bounds.iter().any(names_lifetime) || has_lifetime(&clause.bounded_ty))
        {
            return None;
        }
    }
    let (krate, ident) = (&container.krate, &input.ident);
    let (impl_generics, type_generics, where_clause) = generics.split_for_impl();
    Some(quote! {
        #[automatically_derived]
        impl #impl_generics #krate::codec::WithLifetime for #ident #type_generics #where_clause {
            type With<#any> = #ident<#(#arguments),*>;
        }
    })
}

/// Returns whether a bound holds for some lifetimes and not for all that a type's own parameters
/// outlive.
fn names_lifetime(bound: &TypeParamBound) -> bool {
    !matches!(bound, TypeParamBound::Lifetime(_)) && has_lifetime(bound)
}

fn has_lifetime(tokens: &impl ToTokens) -> bool {
    tokens.to_token_stream().to_string().contains('\'')
}

/// The bounds for the fields that `#[ibex::message]` has marked.
fn bounds(data: &Data, container: &Container) -> Result<Vec<WherePredicate>> {
    if container.schema_name.is_some() {
        return Ok(Vec::new());
    }
    let all_fields: Vec<&Fields> = match data {
        Data::Struct(data) => vec![&data.fields],
        Data::Enum(data) => data
            .variants
            .iter()
            .map(|variant| &variant.fields)
            .collect(),
        Data::Union(_) => Vec::new(),
    };
    let mut bounds = Vec::new();
    for field in all_fields.into_iter().flatten() {
        let field = Field::of(field, container)?;
        if field.is_bounded && field.schema_name.is_none() {
            let ty = field.described_as;
            // Every token is located at the type, or the compiler would underline the attribute.
            let span = ty.span();
            let krate = located(container.krate.to_token_stream(), span);
            bounds.push(syn::parse2(
                quote_spanned!(span=> #ty: #krate::codec::Schema),
            )?);
        }
    }
    Ok(bounds)
}

/// Moves a path to `span`, except for `$crate`, whose own span says which crate it is.
fn located(path: TokenStream, span: Span) -> TokenStream {
    let tokens = path.into_iter().map(|mut token| {
        if token.to_string() != "$crate" {
            token.set_span(span);
        }
        token
    });
    tokens.collect()
}

/// Returns a call per field. Each is located at the field's type, so that a type without a schema
/// is underlined where it is written. But each is resolved like all generated code: the type may
/// come out of a macro, whose names are not those of this crate.
fn fields(fields: &Fields, container: &Container) -> Result<TokenStream> {
    let mut calls = TokenStream::new();
    for (index, field) in fields.iter().enumerate() {
        let name = match &field.ident {
            Some(ident) => ident.unraw().to_string(),
            None => index.to_string(),
        };
        let Field {
            mut described_as,
            wrapper,
            schema_name,
            ..
        } = Field::of(field, container)?;
        let span = Span::call_site().located_at(described_as.span());
        let named = schema_name.map(|schema_name| {
            described_as = parse_quote!(__Named);
            let krate = &container.krate;
            quote! {
                struct __Named;
                impl #krate::codec::Schema for __Named {
                    fn describe(to: &mut #krate::codec::Describer) {
                        to.named(#schema_name);
                    }
                }
            }
        });
        let call = match wrapper {
            Some(wrapper) => quote_spanned! { span=>
                _fields.wrapped::<#described_as>(#name, #wrapper);
            },
            None => quote_spanned! { span=>
                _fields.field::<#described_as>(#name);
            },
        };
        calls.extend(match named {
            Some(named) => quote!({ #named #call }),
            None => call,
        });
    }
    Ok(calls)
}

/// A call per variant, with the discriminant that the compiler will give it:
/// the last explicit one plus the number of variants since.
fn variants(
    data: &DataEnum,
    attributes: &[Attribute],
    container: &Container,
) -> Result<TokenStream> {
    let discriminant_type = discriminant_type(attributes)?;
    let mut base = quote!(0_i128);
    let mut since_base = 0_i128;
    let mut calls = TokenStream::new();
    for variant in &data.variants {
        if let Some((_, value)) = &variant.discriminant {
            base = quote!({
                const VALUE: #discriminant_type = #value;
                VALUE as i128
            });
            since_base = 0;
        }
        let name = variant.ident.unraw().to_string();
        if !container.ignores_serde {
            serde_attributes::check_variant(&variant.attrs)?;
        }
        let fields = fields(&variant.fields, container)?;
        calls.extend(quote! {
            _variants.variant(#name, #base + #since_base, |_fields| { #fields });
        });
        since_base += 1;
    }
    Ok(calls)
}

/// The integer type in `#[repr(..)]`, or the language's default.
fn discriminant_type(attributes: &[Attribute]) -> Result<Type> {
    let mut found = parse_quote!(isize);
    for attribute in attributes {
        if !attribute.path().is_ident("repr") {
            continue;
        }
        attribute.parse_nested_meta(|meta| {
            if let Some(ident) = meta.path.get_ident()
                && INTEGERS.iter().any(|integer| ident == integer)
            {
                found = parse_quote!(#ident);
            }
            if meta.input.peek(syn::token::Paren) {
                let content;
                syn::parenthesized!(content in meta.input);
                content.parse::<TokenStream>()?;
            }
            Ok(())
        })?;
    }
    Ok(found)
}

const INTEGERS: [&str; 10] = [
    "u8", "u16", "u32", "u64", "usize", "i8", "i16", "i32", "i64", "isize",
];
