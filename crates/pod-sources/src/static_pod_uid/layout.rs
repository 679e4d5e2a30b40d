use std::collections::HashMap;
use std::sync::LazyLock;

/// What a Go type is made of.
#[derive(Clone, Debug)]
pub(super) enum Shape {
    Bool,
    Int,
    Text,
    Time,
    Quantity,
    IntOrString,
    FieldsV1,
    Pointer(TypeId),
    List(TypeId),
    /// Of text keys.
    Map(TypeId),
    Struct(Vec<Field>),
}

#[derive(Clone, Debug)]
pub(super) struct Field {
    pub(super) name: &'static str,
    /// `None` where the fields of the field's type stand among those of its owner.
    pub(super) key: Option<&'static str>,
    pub(super) type_id: TypeId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TypeId(usize);

/// The types that a pod is made of inside of the Go kubelet.
#[derive(Default)]
pub(super) struct Layout {
    types: Vec<(&'static str, Shape)>,
    by_name: HashMap<&'static str, TypeId>,
}

impl Layout {
    /// The layout of Kubernetes 1.36.
    pub(super) fn get() -> &'static Self {
        static LAYOUT: LazyLock<Layout> =
            LazyLock::new(|| Layout::read(include_str!("layout.txt")));
        &LAYOUT
    }

    /// The type's name as Go shows it, and its shape.
    pub(super) fn of(&self, id: TypeId) -> (&'static str, &Shape) {
        let (name, shape) = &self.types[id.0];
        (name, shape)
    }

    pub(super) fn pod(&self) -> TypeId {
        self.by_name["*core.Pod"]
    }

    fn read(text: &'static str) -> Self {
        let mut definitions: HashMap<&str, Definition> = HashMap::new();
        let mut current = "";
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let words: Vec<&str> = line.split_whitespace().collect();
            match *words.as_slice() {
                ["struct", name] => {
                    current = name;
                    definitions.insert(name, Definition::Struct(Vec::new()));
                }
                ["type", name, of] => {
                    definitions.insert(name, Definition::Alias(of));
                }
                [name, key, of] => {
                    if let Some(Definition::Struct(fields)) = definitions.get_mut(current) {
                        fields.push((name, key, of));
                    }
                }
                _ => {}
            }
        }
        let mut layout = Self::default();
        layout.resolve("*core.Pod", &definitions);
        layout
    }

    fn resolve(
        &mut self,
        name: &'static str,
        definitions: &HashMap<&'static str, Definition>,
    ) -> TypeId {
        if let Some(known) = self.by_name.get(name) {
            return *known;
        }
        let shape = self.shape(name, definitions);
        let id = TypeId(self.types.len());
        self.types.push((name, shape));
        self.by_name.insert(name, id);
        id
    }

    fn shape(
        &mut self,
        name: &'static str,
        definitions: &HashMap<&'static str, Definition>,
    ) -> Shape {
        match definitions.get(name) {
            Some(Definition::Alias(of)) => return self.shape(of, definitions),
            Some(Definition::Struct(fields)) => {
                return Shape::Struct(
                    fields
                        .iter()
                        .map(|(name, key, of)| Field {
                            name,
                            key: (*key != ".").then_some(*key),
                            type_id: self.resolve(of, definitions),
                        })
                        .collect(),
                );
            }
            None => {}
        }
        if let Some(of) = name.strip_prefix('*') {
            return Shape::Pointer(self.resolve(of, definitions));
        }
        if let Some(of) = name.strip_prefix("[]") {
            return Shape::List(self.resolve(of, definitions));
        }
        if let Some((_, of)) = name.strip_prefix("map[").and_then(|rest| rest.split_once(']')) {
            return Shape::Map(self.resolve(of, definitions));
        }
        match name {
            "bool" => Shape::Bool,
            "int32" | "int64" => Shape::Int,
            "v1.Time" => Shape::Time,
            "v1.FieldsV1" => Shape::FieldsV1,
            "resource.Quantity" => Shape::Quantity,
            "intstr.IntOrString" => Shape::IntOrString,
            // `string`: a test sees to it that the table holds no other name.
            _ => Shape::Text,
        }
    }
}

enum Definition {
    Alias(&'static str),
    Struct(Vec<(&'static str, &'static str, &'static str)>),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_defines_whatever_it_names() {
        let layout = Layout::get();
        let text = include_str!("layout.txt");
        for (name, shape) in &layout.types {
            let alias = format!("type {name} string");
            assert!(
                !matches!(shape, Shape::Text)
                    || *name == "string"
                    || text.lines().any(|line| line == alias),
                "{name}"
            );
        }
        for line in text.lines() {
            if let Some(name) = line.strip_prefix("struct ") {
                assert!(layout.by_name.contains_key(name), "{name} is part of no pod");
            }
        }
    }
}
