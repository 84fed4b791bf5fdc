// Command oci packs the program as an OCI image, for make image. It needs no container engine: an
// image is a tar archive with JSON files.
//
//	program, licence ──► layer (tar, gzip) ──► blobs/sha256/… ─┐
//	                     configuration, manifest ──► blobs/sha256/… ┼► archive
//	                     index.json, oci-layout ─────────────────────┘
//
// The image has no other programs and no libraries. The same input makes the same bytes. The tool runs
// once and ends; it shares nothing.
//
// Reference: OCI image format specification 1.1 (image-layout.md, layer.md, config.md).
package main
