// Command static-pod-uid says which uid the Go kubelet gives a static pod, and shows the text the
// uid is a hash of. The project's tests compare themselves with its answers.
//
//	static-pod-uid [-dump] manifest...       path, uid (and text) of each manifest
//	static-pod-uid -golden DIR               uids of DIR's manifests, as lines of "uid name"
//	static-pod-uid -fuzz N [-seed S] [-dump] N random manifests with their uids, as lines of JSON
//	static-pod-uid -layout                   the Go types of a pod, as crates/pod-sources reads them
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"
	"time"
	_ "unsafe" // for go:linkname

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	core "k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	_ "k8s.io/kubernetes/pkg/kubelet/config"
	"k8s.io/utils/dump"
)

// The kubelet's own function; asking it leaves no doubt about the answer.
//
//go:linkname applyDefaults k8s.io/kubernetes/pkg/kubelet/config.applyDefaults
func applyDefaults(logger klog.Logger, pod *core.Pod, source string, isFile bool, nodeName types.NodeName) error

// question is a manifest with its place; answer fields are empty until asked.
type question struct {
	Manifest string `json:"manifest"`
	Source   string `json:"source"`
	File     bool   `json:"file"`
	Node     string `json:"node"`
	UID      string `json:"uid"`
	Dump     string `json:"dump,omitempty"`
}

func (q *question) ask(withDump bool) error {
	text, err := utilyaml.ToJSON([]byte(q.Manifest))
	if err != nil {
		return err
	}
	object, err := runtime.Decode(legacyscheme.Codecs.UniversalDecoder(), text)
	if err != nil {
		return err
	}
	pod, ok := object.(*core.Pod)
	if !ok {
		return fmt.Errorf("not a pod: %T", object)
	}
	if withDump {
		q.Dump = dump.ForHash(pod)
	}
	if err := applyDefaults(klog.Background(), pod, q.Source, q.File, types.NodeName(q.Node)); err != nil {
		return err
	}
	q.UID = string(pod.UID)
	return nil
}

func ofFile(path string, withDump bool) question {
	text, err := os.ReadFile(path)
	if err != nil {
		log.Fatal(err)
	}
	q := question{
		Manifest: string(text),
		Source:   "/etc/kubernetes/manifests/" + filepath.Base(path),
		File:     true,
		Node:     "node-1",
	}
	if err := q.ask(withDump); err != nil {
		log.Fatalf("%s: %v", path, err)
	}
	return q
}

func main() {
	log.SetFlags(0)
	// A kubelet has written its first log line, and so knows its time zone, before it reads a manifest.
	_ = time.Local.String()
	withDump := flag.Bool("dump", false, "show the hashed text too")
	golden := flag.String("golden", "", "directory of manifests")
	fuzz := flag.Int("fuzz", 0, "number of random manifests")
	seed := flag.Uint64("seed", 1, "of the random manifests")
	layout := flag.Bool("layout", false, "print the types of a pod")
	flag.Parse()
	switch {
	case *layout:
		printLayout()
	case *golden != "":
		entries, err := os.ReadDir(*golden)
		if err != nil {
			log.Fatal(err)
		}
		for _, entry := range entries {
			name := entry.Name()
			if strings.HasSuffix(name, ".yaml") || strings.HasSuffix(name, ".json") {
				fmt.Println(ofFile(filepath.Join(*golden, name), false).UID, name)
			}
		}
	case *fuzz > 0:
		out := json.NewEncoder(os.Stdout)
		out.SetEscapeHTML(false)
		g := newGenerator(*seed)
		for made := 0; made < *fuzz; {
			q := g.question()
			// Few are refused, such as numbers that do not fit.
			if err := q.ask(*withDump); err != nil {
				log.Printf("refused: %v", err)
				continue
			}
			if err := out.Encode(q); err != nil {
				log.Fatal(err)
			}
			made++
		}
	default:
		for _, path := range flag.Args() {
			q := ofFile(path, *withDump)
			fmt.Println(path, q.UID)
			if *withDump {
				fmt.Println(q.Dump)
			}
		}
	}
}
