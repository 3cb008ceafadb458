//! The contents of `#[ibex(..)]` and `#[rkyv(..)]`, as far as the derives use them.

use syn::meta::ParseNestedMeta;
use syn::{
    Attribute, Error, Expr, GenericArgument, LitStr, Path, PathArguments, Result, Type, parse_quote,
};

use crate::serde_attributes;

/// The contents of `#[ibex(..)]` on a type, or of the parentheses of `#[ibex::message(..)]`.
pub(crate) struct Container {
    /// The ibex crate.
    pub(crate) krate: Path,
    /// Attributes of serde are for other formats than ours.
    pub(crate) ignores_serde: bool,
    /// The name that stands for all of its structure.
    pub(crate) schema_name: Option<LitStr>,
    /// Set if a message refers to itself through others; `None` outside of `#[ibex::message(..)]`.
    pub(crate) is_recursive: Option<bool>,
    /// Set by `#[ibex::message]` for the derive of `Schema`.
    pub(crate) is_message: bool,
    /// Set with it if the attribute has refused a field, so that one error is enough.
    pub(crate) is_refused: bool,
}

impl Container {
    fn new() -> Self {
        Self {
            krate: parse_quote!(::ibex),
            ignores_serde: false,
            schema_name: None,
            is_recursive: None,
            is_message: false,
            is_refused: false,
        }
    }

    /// Creates the settings in the parentheses of `#[ibex::message(..)]`.
    pub(crate) fn of_message() -> Self {
        Self {
            is_recursive: Some(false),
            ..Self::new()
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
        } else if meta.path.is_ident("ignore_serde") {
            self.ignores_serde = true;
            Ok(())
        } else if meta.path.is_ident("schema_name") {
            self.schema_name = Some(schema_name(meta)?);
            Ok(())
        } else if meta.path.is_ident("__message") {
            self.is_message = true;
            Ok(())
        } else if meta.path.is_ident("__refused") {
            self.is_refused = true;
            Ok(())
        } else if let Some(is_recursive) = &mut self.is_recursive {
            if meta.path.is_ident("recursive") {
                *is_recursive = true;
                return Ok(());
            }
            Err(meta.error(
                "ibex knows only `crate = path`, `schema_name = \"name\"`, `ignore_serde` and \
                 `recursive` here",
            ))
        } else {
            Err(meta.error(
                "ibex knows only `crate = path`, `schema_name = \"name\"` and `ignore_serde` here",
            ))
        }
    }
}

/// The description of a field.
pub(crate) struct Field {
    /// The type whose structure it has.
    pub(crate) described_as: Type,
    /// The way in which the field is stored, if not as its type: rkyv's wrapper, by its bare name,
    /// or serde's `skip`.
    pub(crate) wrapper: Option<String>,
    /// The name that stands for the structure of its type.
    pub(crate) schema_name: Option<LitStr>,
    /// The type whose archived form rkyv writes for it; `None` if the attributes tell only a name,
    /// or that rkyv writes nothing.
    pub(crate) archived_as: Option<Type>,
    /// rkyv leaves the field out.
    pub(crate) is_left_out: bool,
    /// The field refers to the type that it is in, directly or through others.
    pub(crate) is_recursive: bool,
    /// `#[ibex(schema = ..)]` says what to describe the field as.
    is_described: bool,
    /// Set if the implementation is to say that this type has a schema, so that a lack of it
    /// is one error.
    pub(crate) is_bounded: bool,
}

impl Field {
    pub(crate) fn of(field: &syn::Field, container: &Container) -> Result<Self> {
        let mut this = Self {
            described_as: field.ty.clone(),
            wrapper: None,
            schema_name: None,
            archived_as: None,
            is_left_out: false,
            is_recursive: false,
            is_described: false,
            is_bounded: false,
        };
        for attribute in &field.attrs {
            if attribute.path().is_ident("ibex") {
                attribute.parse_nested_meta(|meta| this.parse_ibex(&meta))?;
            } else if attribute.path().is_ident("rkyv") {
                attribute.parse_nested_meta(|meta| this.parse_rkyv(&meta))?;
            }
        }
        if this.schema_name.is_none() && !this.is_left_out {
            this.archived_as = Some(this.described_as.clone());
        }
        if !container.ignores_serde {
            this.add_serde(serde_attributes::FieldFormat::of(&field.attrs)?, container)?;
        }
        Ok(this)
    }

    /// The bytes of each codec depend on its own attributes, and the description counts all of
    /// them. So descriptions may differ where the bytes do not, but equal descriptions never have
    /// different bytes.
    fn add_serde(
        &mut self,
        how: serde_attributes::FieldFormat,
        container: &Container,
    ) -> Result<()> {
        let is_described = self.is_described || self.schema_name.is_some();
        match how {
            serde_attributes::FieldFormat::Plain => {}
            serde_attributes::FieldFormat::Bytes if !is_described => {
                let (krate, ty) = (&container.krate, &self.described_as);
                self.described_as = parse_quote!(#krate::codec::ByteString<#ty>);
            }
            serde_attributes::FieldFormat::Skipped => {
                let inner = self.wrapper.take();
                self.wrapper =
                    Some(inner.map_or("skip".to_owned(), |inner| format!("skip {inner}")));
            }
            serde_attributes::FieldFormat::Custom(span) if !is_described => {
                return Err(Error::new(
                    span,
                    "ibex cannot see what this writes; name a type of the same structure: \
                     `#[ibex(schema = [u8; 16])]`, or what writes it and its release: \
                     `#[ibex(schema_name = \"uuid-1\")]`",
                ));
            }
            serde_attributes::FieldFormat::Bytes | serde_attributes::FieldFormat::Custom(_) => {}
        }
        Ok(())
    }

    fn parse_ibex(&mut self, meta: &ParseNestedMeta<'_>) -> Result<()> {
        if meta.path.is_ident("schema") {
            self.described_as = meta.value()?.parse()?;
            self.is_described = true;
            self.check_one_description(meta)
        } else if meta.path.is_ident("schema_name") {
            self.schema_name = Some(schema_name(meta)?);
            self.check_one_description(meta)
        } else if meta.path.is_ident("__bounded") {
            self.is_bounded = true;
            Ok(())
        } else {
            Err(meta
                .error("ibex knows only `schema = Type` and `schema_name = \"name\"` on a field"))
        }
    }

    fn check_one_description(&self, meta: &ParseNestedMeta<'_>) -> Result<()> {
        match self.is_described && self.schema_name.is_some() {
            true => Err(meta.error("a field is described by `schema` or by `schema_name`")),
            false => Ok(()),
        }
    }

    fn parse_rkyv(&mut self, meta: &ParseNestedMeta<'_>) -> Result<()> {
        if meta.path.is_ident("with") {
            let wrapper = bare_name(&meta.value()?.parse()?);
            self.is_left_out = wrapper == "Skip";
            self.wrapper = Some(wrapper);
        } else if meta.path.is_ident("omit_bounds") {
            self.is_recursive = true;
        } else if meta.input.peek(syn::Token![=]) {
            // Any other attribute is rkyv's to judge, so it is only stepped over here.
            meta.value()?.parse::<Expr>()?;
        } else if meta.input.peek(syn::token::Paren) {
            let content;
            syn::parenthesized!(content in meta.input);
            content.parse::<proc_macro2::TokenStream>()?;
        }
        Ok(())
    }
}

/// The name in `schema_name = "name"`.
fn schema_name(meta: &ParseNestedMeta<'_>) -> Result<LitStr> {
    let name: LitStr = meta.value()?.parse()?;
    match name.value().trim().is_empty() {
        true => Err(Error::new(
            name.span(),
            "a schema's name says what it stands for, as `\"openraft-0.10\"` does",
        )),
        false => Ok(name),
    }
}

/// Returns a type without the modules that its names come from: `Map<Inline>` for
/// `rkyv::with::Map<rkyv::with::Inline>`. The way in which a user imports a wrapper must not change
/// the fingerprint.
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
