//! The contents of `#[serde(..)]`, as far as they change the bytes that the codec `Serde` writes.
//!
//! The format has positions and neither names nor types. Attributes that only name things are
//! therefore stepped over. Attributes that let one end leave out or insert bytes that the other
//! does not expect are refused, and so are all attributes that are not known here.

use proc_macro2::{Span, TokenStream};
use syn::meta::ParseNestedMeta;
use syn::spanned::Spanned;
use syn::{Attribute, Error, Expr, ExprLit, Lit, Result};

/// The way in which serde writes a field.
pub(crate) enum FieldFormat {
    /// The field is stored as its type.
    Plain,
    /// The field is stored as bytes, by the crate serde_bytes.
    Bytes,
    /// The field is not stored.
    Skipped,
    /// The field is stored by functions of the user's own, named here.
    Custom(Span),
}

impl FieldFormat {
    pub(crate) fn of(attributes: &[Attribute]) -> Result<Self> {
        let mut this = Self::Plain;
        for_each(attributes, |name, meta| {
            match name {
                "alias" | "borrow" | "bound" | "default" | "getter" | "rename" => skip_value(meta)?,
                "skip" => this = Self::Skipped,
                "with" => {
                    let span = meta.path.span();
                    this = match is_serde_bytes(&meta.value()?.parse()?) {
                        true => Self::Bytes,
                        false => Self::Custom(span),
                    };
                }
                "serialize_with" | "deserialize_with" => {
                    this = Self::Custom(meta.path.span());
                    skip_value(meta)?;
                }
                "flatten" => return Err(refused(meta, "writes names, and the format has none")),
                "skip_serializing" | "skip_deserializing" => {
                    return Err(refused(
                        meta,
                        "is for one direction, and both ends have to count the same fields; \
                         `skip` is for both",
                    ));
                }
                "skip_serializing_if" => {
                    return Err(refused(
                        meta,
                        "leaves out bytes that the other end expects, and takes those of the \
                         next field for them",
                    ));
                }
                _ => return Err(unknown(meta)),
            }
            Ok(())
        })?;
        Ok(this)
    }
}

/// Refuses attributes that a struct or an enum may not have.
pub(crate) fn check_container(attributes: &[Attribute]) -> Result<()> {
    for_each(attributes, |name, meta| match name {
        "bound"
        | "crate"
        | "default"
        | "deny_unknown_fields"
        | "expecting"
        | "remote"
        | "rename"
        | "rename_all"
        | "rename_all_fields"
        | "transparent" => skip_value(meta),
        "content" | "tag" | "untagged" => Err(refused(
            meta,
            "has the reader ask what comes next, and the format does not say",
        )),
        "from" | "into" | "try_from" => Err(refused(
            meta,
            "writes another type in this one's place; write `impl ibex::Schema` by hand, and \
             describe that type there",
        )),
        _ => Err(unknown(meta)),
    })
}

/// Refuses attributes that a variant may not have.
pub(crate) fn check_variant(attributes: &[Attribute]) -> Result<()> {
    for_each(attributes, |name, meta| match name {
        "alias" | "borrow" | "bound" | "rename" | "rename_all" => skip_value(meta),
        "skip" | "skip_serializing" | "skip_deserializing" => Err(refused(
            meta,
            "makes the two directions count the variants behind it otherwise",
        )),
        "untagged" | "other" => Err(refused(
            meta,
            "has the reader ask what comes next, and the format does not say",
        )),
        "with" | "serialize_with" | "deserialize_with" => Err(refused(
            meta,
            "writes the variant in a way that cannot be described; put it on a field",
        )),
        _ => Err(unknown(meta)),
    })
}

fn for_each(
    attributes: &[Attribute],
    mut each: impl FnMut(&str, &ParseNestedMeta<'_>) -> Result<()>,
) -> Result<()> {
    for attribute in attributes {
        if attribute.path().is_ident("serde") {
            attribute.parse_nested_meta(|meta| {
                let name = meta.path.get_ident().map(ToString::to_string);
                each(name.as_deref().unwrap_or_default(), &meta)
            })?;
        }
    }
    Ok(())
}

/// Steps over `= value` and `(..)`, which are serde's to judge.
fn skip_value(meta: &ParseNestedMeta<'_>) -> Result<()> {
    if meta.input.peek(syn::Token![=]) {
        meta.value()?.parse::<Expr>()?;
    } else if meta.input.peek(syn::token::Paren) {
        let content;
        syn::parenthesized!(content in meta.input);
        content.parse::<TokenStream>()?;
    }
    Ok(())
}

/// Returns whether a path in quotes leads to the crate serde_bytes, through whatever modules.
fn is_serde_bytes(path: &Expr) -> bool {
    let Expr::Lit(ExprLit {
        lit: Lit::Str(path),
        ..
    }) = path
    else {
        return false;
    };
    path.value().rsplit("::").next().map(str::trim) == Some("serde_bytes")
}

fn refused(meta: &ParseNestedMeta<'_>, why: &str) -> Error {
    let name = meta.path.get_ident().map(ToString::to_string);
    let name = name.unwrap_or_default();
    meta.error(format!(
        "the codec `Serde` cannot carry this: `{name}` {why}; {WAY_OUT}"
    ))
}

fn unknown(meta: &ParseNestedMeta<'_>) -> Error {
    meta.error(format!(
        "ibex does not know what this attribute does to the bytes that the codec `Serde` \
         writes; {WAY_OUT}"
    ))
}

/// The advice for types that have serde's derives for something else.
const WAY_OUT: &str = "if no channel of that codec carries this type, say \
                       `#[ibex(ignore_serde)]` on it";
