package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	_ "crypto/sha256" // go-digest asks for it to be linked
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/opencontainers/go-digest"
	specs "github.com/opencontainers/image-spec/specs-go"
	spec "github.com/opencontainers/image-spec/specs-go/v1"
)

func main() {
	i := image{}
	out := flag.String("out", "vnic.oci.tar", "archive to write")
	flag.StringVar(&i.program, "program", "build/vnic", "the static program")
	flag.StringVar(&i.licence, "licence", "LICENSE", "the file with its licence")
	flag.StringVar(&i.arch, "arch", "amd64", "its architecture, as Go names it")
	flag.StringVar(&i.version, "version", "unknown", "its version, for a label")
	flag.Parse()
	if err := i.write(*out); err != nil {
		fmt.Fprintln(os.Stderr, "oci:", err)
		os.Exit(1)
	}
}

// name is what the image is called when it is loaded: podman takes the specification's annotation,
// docker containerd's.
const name = "localhost/vnic:latest"

// image is what goes into the archive.
type image struct {
	program, licence, arch, version string
}

// write writes the archive. It appears complete or not at all.
func (i image) write(path string) error {
	f, err := os.Create(path + ".new")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // fails after the rename, as intended
	if err := errors.Join(i.archive(f), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// archive writes the image's layout: blobs by their digests, and the index, which names the manifest.
func (i image) archive(to io.Writer) error {
	layer, diffID, err := i.layer()
	if err != nil {
		return err
	}
	l := layout{w: tar.NewWriter(to)}
	config := spec.Image{
		Platform: spec.Platform{Architecture: i.arch, OS: "linux"},
		Config: spec.ImageConfig{
			Entrypoint: []string{"/usr/bin/vnic"},
			Cmd:        []string{"run", "-c", "/etc/vnic/nic.yaml"},
			Env:        []string{"PATH=/usr/bin"},
			Volumes:    map[string]struct{}{"/run/vnic": {}}, // sockets for guests
			StopSignal: "SIGTERM",
			Labels:     map[string]string{spec.AnnotationTitle: "vnic", spec.AnnotationVersion: i.version},
		},
		RootFS: spec.RootFS{Type: "layers", DiffIDs: []digest.Digest{diffID}},
	}
	manifest := spec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: spec.MediaTypeImageManifest,
		Layers:    []spec.Descriptor{l.blob(spec.MediaTypeImageLayerGzip, layer)},
		Config:    l.json(spec.MediaTypeImageConfig, config),
	}
	named := l.json(spec.MediaTypeImageManifest, manifest)
	named.Platform = &config.Platform
	named.Annotations = map[string]string{spec.AnnotationRefName: name, "io.containerd.image.name": name}
	l.file(spec.ImageIndexFile, l.encode(spec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: spec.MediaTypeImageIndex, Manifests: []spec.Descriptor{named}}))
	l.file(spec.ImageLayoutFile, l.encode(spec.ImageLayout{Version: spec.ImageLayoutVersion}))
	return errors.Join(l.err, l.w.Close())
}

// layer returns the image's only layer, and the digest of what it unpacks to.
func (i image) layer() (packed []byte, id digest.Digest, err error) {
	var b bytes.Buffer
	l := layout{w: tar.NewWriter(&b)}
	for _, dir := range []string{"usr/", "usr/bin/", "usr/share/", "usr/share/doc/", "usr/share/doc/vnic/", "etc/", "etc/vnic/", "run/", "run/vnic/"} {
		l.add(&tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: 0o755}, nil)
	}
	l.add(&tar.Header{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777}, nil)
	for _, f := range []struct {
		name, from string
		mode       int64
	}{{"usr/bin/vnic", i.program, 0o755}, {"usr/share/doc/vnic/copyright", i.licence, 0o644}} {
		body, err := os.ReadFile(f.from)
		if err != nil {
			return nil, "", err
		}
		l.add(&tar.Header{Name: f.name, Mode: f.mode}, body)
	}
	if err := errors.Join(l.err, l.w.Close()); err != nil {
		return nil, "", err
	}
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	_, err = w.Write(b.Bytes())
	err = errors.Join(err, w.Close())
	return z.Bytes(), digest.FromBytes(b.Bytes()), err
}

// layout writes a tar archive; after an error nothing more.
type layout struct {
	w   *tar.Writer
	err error
}

// blob writes a file under its digest and returns its descriptor.
func (l *layout) blob(mediaType string, body []byte) spec.Descriptor {
	d := digest.FromBytes(body)
	l.file(spec.ImageBlobsDir+"/"+string(d.Algorithm())+"/"+d.Encoded(), body)
	return spec.Descriptor{MediaType: mediaType, Digest: d, Size: int64(len(body))}
}

func (l *layout) json(mediaType string, v any) spec.Descriptor {
	return l.blob(mediaType, l.encode(v))
}

func (l *layout) encode(v any) []byte {
	b, err := json.Marshal(v)
	l.err = errors.Join(l.err, err)
	return b
}

func (l *layout) file(name string, body []byte) {
	l.add(&tar.Header{Name: name, Mode: 0o644}, body)
}

func (l *layout) add(h *tar.Header, body []byte) {
	if l.err != nil {
		return
	}
	h.Size = int64(len(body))
	if l.err = l.w.WriteHeader(h); l.err == nil {
		_, l.err = l.w.Write(body)
	}
}
