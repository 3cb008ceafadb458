//! What stands in `#[ibex(..)]` and `#[rkyv(..)]`, as far as it concerns us.

use syn::meta::ParseNestedMeta;
use syn::{Attribute, Expr, GenericArgument, Path, PathArguments, Result, Type};

/// What `#[ibex(..)]` says on a type, or in the parentheses of
/// `#[ibex::message(..)]`.
pub(crate) struct Container {
    /// The ibex crate.
    pub(crate) krate: Path,
}

impl Container {
    pub(crate) fn new() -> Self {
        Self {
            krate: syn::parse_quote!(::ibex),
        }
    }

    pub(crate) fn of(attributes: &[Attribute]) -> Result<Self> {
        let mut this = Self::new();
        for attribute in attributes {
            if attribute.path().is_ident("ibex") {
                attribute.parse_nested_meta(|meta| this.parse(&meta))?;
            }
        }
        Ok(this)
    }

    pub(crate) fn parse(&mut self, meta: &ParseNestedMeta<'_>) -> Result<()> {
        if meta.path.is_ident("crate") {
            self.krate = meta.value()?.call(Path::parse_mod_style)?;
            Ok(())
        } else {
            Err(meta.error("ibex knows only `crate = path` here"))
        }
    }
}

/// How a field is to be described.
pub(crate) struct Field {
    /// The type whose structure it has.
    pub(crate) described_as: Type,
    /// The wrapper by which rkyv archives it, by its bare name.
    pub(crate) wrapper: Option<String>,
}

impl Field {
    pub(crate) fn of(field: &syn::Field) -> Result<Self> {
        let mut this = Self {
            described_as: field.ty.clone(),
            wrapper: None,
        };
        for attribute in &field.attrs {
            if attribute.path().is_ident("ibex") {
                attribute.parse_nested_meta(|meta| this.parse_ibex(&meta))?;
            } else if attribute.path().is_ident("rkyv") {
                attribute.parse_nested_meta(|meta| this.parse_rkyv(&meta))?;
            }
        }
        Ok(this)
    }

    fn parse_ibex(&mut self, meta: &ParseNestedMeta<'_>) -> Result<()> {
        if meta.path.is_ident("schema") {
            self.described_as = meta.value()?.parse()?;
            Ok(())
        } else {
            Err(meta.error("ibex knows only `schema = Type` on a field"))
        }
    }

    fn parse_rkyv(&mut self, meta: &ParseNestedMeta<'_>) -> Result<()> {
        if meta.path.is_ident("with") {
            self.wrapper = Some(bare_name(&meta.value()?.parse()?));
        } else if meta.input.peek(syn::Token![=]) {
            // Anything else is rkyv's to judge; here it is only stepped over.
            meta.value()?.parse::<Expr>()?;
        } else if meta.input.peek(syn::token::Paren) {
            let content;
            syn::parenthesized!(content in meta.input);
            content.parse::<proc_macro2::TokenStream>()?;
        }
        Ok(())
    }
}

/// A type without the modules that its names come from: `Map<Inline>` for
/// `rkyv::with::Map<rkyv::with::Inline>`. How a user imports a wrapper must not
/// change the fingerprint.
fn bare_name(ty: &Type) -> String {
    let Type::Path(path) = ty else {
        return quote::quote!(#ty).to_string();
    };
    let Some(last) = path.path.segments.last() else {
        return String::new();
    };
    let mut name = last.ident.to_string();
    if let PathArguments::AngleBracketed(arguments) = &last.arguments {
        let arguments: Vec<String> = arguments
            .args
            .iter()
            .map(|argument| match argument {
                GenericArgument::Type(ty) => bare_name(ty),
                other => quote::quote!(#other).to_string(),
            })
            .collect();
        name = format!("{name}<{}>", arguments.join(", "));
    }
    name
}
