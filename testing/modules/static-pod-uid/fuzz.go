package main

import (
	"encoding/json"
	"log"
	"math/rand/v2"
	"reflect"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"
)

var (
	texts = []string{
		"", "a", "web", "Always", "é ü", "<&>", "line\nbreak\ttab", "\"quoted\"", "a/b:c", " space ",
		"日本", "\u2028", "%v%s", "map[a:b]", "0", "true",
	}
	images = []string{
		"", "nginx", "nginx:latest", "nginx:1.25", "reg:5000/a/b", "reg:5000/a/b:2", "reg.io/a@sha256:" +
			strings.Repeat("ab", 32), "reg.io/a:latest@sha256:" + strings.Repeat("0f", 32),
	}
	keys       = []string{"a", "b", "B", "a.b/c", "app.kubernetes.io/name", "-", "é", ""}
	resources  = []string{"cpu", "memory", "ephemeral-storage", "hugepages-2Mi", "example.com/gpu"}
	quantities = []string{
		"0", "1", "2", "10", "100", "1000", "1024", "100m", "250m", "1500m", "1u", "1n", "999500u", "1234567n",
		"0.1", "0.5", "1.5", ".5", "5.", "00", "007", "0.0", "1e3", "1E3", "1e-3", "1.5e2", "12e6", "1e20", "1Ki", "128Mi",
		"100Mi", "1.5Gi", "0.1Gi", "0.5Mi", "0.0001Ki", "8Ei", "7Ei", "9Ei", "1000Ti", "1Pi", "3M", "3G", "2T", "5P", "1E",
		"20E", "-1", "-100m", "-1.5Gi", "+5", "+0.5", "123456789012345678", "1234567890123456789",
		"123456789012345678901234567890", "0.000000000001", "1.0000000001", "9223372036854775807",
		"0Ki", "0.000Mi", "1000m", "3000", "20000m", "100.5m", "1.000", " 1 ", "4.5e-12", "-0", "-0.0", "64k", "0.00000000000000000001Ki",
	}
	integers = []int64{0, 1, 2, 7, 8, 30, 80, 420, 1000, 8080, 65535, -1, -30, 2147483647}
	times    = []string{"2024-01-02T03:04:05Z"}
)

type generator struct {
	random *rand.Rand
	sparse float64
}

func newGenerator(seed uint64) *generator {
	return &generator{random: rand.New(rand.NewPCG(seed, 0))}
}

func (g *generator) question() question {
	g.sparse = 0.15 + 0.6*g.random.Float64()
	pod := g.structure(reflect.TypeFor[v1.Pod](), 0)
	pod["apiVersion"] = "v1"
	pod["kind"] = "Pod"
	metadata, ok := pod["metadata"].(map[string]any)
	if !ok {
		metadata = map[string]any{}
		pod["metadata"] = metadata
	}
	metadata["name"] = "pod"
	delete(metadata, "uid")
	if g.random.IntN(4) > 0 {
		delete(pod, "status")
	}
	text, err := json.Marshal(pod)
	if err != nil {
		log.Fatal(err)
	}
	if g.random.IntN(2) == 0 {
		if text, err = yaml.JSONToYAML(text); err != nil {
			log.Fatal(err)
		}
	}
	q := question{Manifest: string(text), Source: "http://127.0.0.1/pod", Node: pick(g, []string{"node-1", "Node.Example"})}
	if g.random.IntN(3) > 0 {
		q.File = true
		q.Source = "/etc/kubernetes/manifests/pod.yaml"
	}
	return q
}

func pick[T any](g *generator, from []T) T {
	return from[g.random.IntN(len(from))]
}

func (g *generator) structure(t reflect.Type, depth int) map[string]any {
	object := map[string]any{}
	for i := range t.NumField() {
		field := t.Field(i)
		tag, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		if tag == "" && strings.Contains(options, "inline") {
			for key, value := range g.structure(field.Type, depth) {
				object[key] = value
			}
			continue
		}
		// Without these the pod would be refused, by both kubelets.
		if !strings.Contains(options, "omitempty") || field.Type == reflect.TypeFor[v1.PodSpec]() {
			switch field.Type.Kind() {
			case reflect.Slice:
				object[tag] = []any{g.value(field.Type.Elem(), depth+1)}
				continue
			case reflect.Map:
				object[tag] = map[string]any{"cpu": g.value(field.Type.Elem(), depth+1)}
				continue
			case reflect.Pointer, reflect.Struct:
				object[tag] = g.value(field.Type, depth+1)
				continue
			}
		}
		leaf := field.Type.Kind() != reflect.Struct && field.Type.Kind() != reflect.Slice && field.Type.Kind() != reflect.Pointer
		chance := g.sparse
		if depth > 3 && !leaf {
			chance /= float64(depth - 2)
		}
		if g.random.Float64() >= chance {
			continue
		}
		if g.random.IntN(40) == 0 {
			object[tag] = nil
			continue
		}
		switch {
		case (tag == "image" || tag == "reference") && field.Type.Kind() == reflect.String:
			object[tag] = pick(g, images)
		case tag == "restartPolicy" && g.random.IntN(2) == 0:
			object[tag] = "Always"
		default:
			object[tag] = g.value(field.Type, depth+1)
		}
	}
	return object
}

func (g *generator) quantity() string {
	if g.random.IntN(3) > 0 {
		return pick(g, quantities)
	}
	text := pick(g, []string{"", "", "", "", "-", "+"})
	for range 1 + g.random.IntN(pick(g, []int{2, 5, 22})) {
		text += pick(g, []string{"0", "0", "1", "2", "5", "9"})
	}
	if g.random.IntN(3) == 0 {
		text += "."
		for range g.random.IntN(pick(g, []int{2, 5, 14})) {
			text += pick(g, []string{"0", "0", "1", "5", "9"})
		}
	}
	return text + pick(g, []string{
		"", "", "n", "u", "m", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "e0", "e3",
		"E-7", "e+12", "e2", "e-12", "e25",
	})
}

func (g *generator) value(t reflect.Type, depth int) any {
	switch t {
	case reflect.TypeFor[resource.Quantity]():
		return g.quantity()
	case reflect.TypeFor[intstr.IntOrString]():
		if g.random.IntN(2) == 0 {
			return pick(g, integers)
		}
		return pick(g, texts)
	case reflect.TypeFor[metav1.Time]():
		return pick(g, times)
	case reflect.TypeFor[metav1.FieldsV1]():
		return map[string]any{"f:metadata": map[string]any{"f:labels": map[string]any{".": map[string]any{}}}}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return g.value(t.Elem(), depth)
	case reflect.Struct:
		return g.structure(t, depth)
	case reflect.Slice:
		items := make([]any, pick(g, []int{0, 1, 1, 1, 2, 3}))
		for i := range items {
			items[i] = g.value(t.Elem(), depth)
		}
		return items
	case reflect.Map:
		object := map[string]any{}
		for range g.random.IntN(4) {
			from := keys
			if t == reflect.TypeFor[v1.ResourceList]() {
				from = resources
			}
			object[pick(g, from)] = g.value(t.Elem(), depth)
		}
		return object
	case reflect.String:
		return pick(g, texts)
	case reflect.Bool:
		return g.random.IntN(2) == 0
	case reflect.Int32, reflect.Int64:
		return pick(g, integers)
	}
	log.Fatalf("no values of type %s", t)
	return nil
}
