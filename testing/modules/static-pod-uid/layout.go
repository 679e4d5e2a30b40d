package main

import (
	"fmt"
	"log"
	"reflect"
	"sort"
	"strings"

	v1 "k8s.io/api/core/v1"
	core "k8s.io/kubernetes/pkg/apis/core"
)

// Fields of internal types that stand elsewhere in the API's form of a pod.
var moved = map[string]string{
	"core.PodSecurityContext.HostNetwork":           "hostNetwork",
	"core.PodSecurityContext.HostPID":               "hostPID",
	"core.PodSecurityContext.HostIPC":               "hostIPC",
	"core.PodSecurityContext.ShareProcessNamespace": "shareProcessNamespace",
	"core.PodSecurityContext.HostUsers":             "hostUsers",
}

// What stands behind these names is not written as the API writes it, so the reader knows it itself.
var opaque = map[string]bool{
	"intstr.IntOrString": true,
	"resource.Quantity":  true,
	"v1.FieldsV1":        true,
	"v1.Time":            true,
}

const header = `# What a pod is made of inside of the Go kubelet (k8s.io/kubernetes/pkg/apis/core, 1.36): the order,
# names and types of fields are part of the text whose hash is a static pod's uid.
#
# Printed by testing/modules/static-pod-uid -layout. A field is followed by its key in the API's form
# of a pod ("." where its own fields stand among its owner's) and its type.
`

type layoutWalk map[string]string

func printLayout() {
	walk := layoutWalk{}
	walk.visit(reflect.TypeFor[core.Pod](), reflect.TypeFor[v1.Pod]())
	names := make([]string, 0, len(walk))
	for name := range walk {
		names = append(names, name)
	}
	sort.Strings(names)
	fmt.Print(header)
	for _, name := range names {
		fmt.Print(walk[name])
	}
}

func (walk layoutWalk) visit(internal, external reflect.Type) {
	switch internal.Kind() {
	case reflect.Pointer, reflect.Slice:
		walk.visit(internal.Elem(), external.Elem())
		if internal.Name() == "" {
			return
		}
	case reflect.Map:
		walk.visit(internal.Key(), external.Key())
		walk.visit(internal.Elem(), external.Elem())
		if internal.Name() == "" {
			return
		}
	}
	name := internal.String()
	if internal.PkgPath() == "" || opaque[name] {
		return
	}
	text := walk.describe(internal, external)
	if known, ok := walk[name]; ok && known != text {
		log.Fatalf("two types %s:\n%s\n%s", name, known, text)
	}
	walk[name] = text
}

func (walk layoutWalk) describe(internal, external reflect.Type) string {
	name := internal.String()
	switch internal.Kind() {
	case reflect.Struct:
	case reflect.Map:
		return fmt.Sprintf("type %s map[%s]%s\n", name, internal.Key(), internal.Elem())
	case reflect.Slice:
		return fmt.Sprintf("type %s []%s\n", name, internal.Elem())
	default:
		return fmt.Sprintf("type %s %s\n", name, internal.Kind())
	}
	var text strings.Builder
	fmt.Fprintf(&text, "struct %s\n", name)
	for i := range internal.NumField() {
		field := internal.Field(i)
		counterpart, ok := external.FieldByName(field.Name)
		key := moved[name+"."+field.Name]
		switch {
		case ok:
			tag, _, _ := strings.Cut(counterpart.Tag.Get("json"), ",")
			switch {
			case tag != "":
				key = tag
			case strings.Contains(counterpart.Tag.Get("json"), "inline"):
				key = "."
			default:
				key = field.Name
			}
			walk.visit(field.Type, counterpart.Type)
		case key != "":
			walk.visit(field.Type, field.Type)
		default:
			log.Fatalf("where is %s.%s in the API?", name, field.Name)
		}
		fmt.Fprintf(&text, "  %s %s %s\n", field.Name, key, field.Type)
	}
	return text.String()
}
