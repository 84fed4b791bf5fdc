package image

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Fields of a kernel image's header (Linux Documentation/arch/x86/boot.rst).
const (
	setupSectors  = 0x1f1 // one byte: number of 512-byte sectors before the code, without the first
	headerMagic   = 0x202 // "HdrS"
	headerVersion = 0x206
	payloadOffset = 0x248 // in bytes from the end of the setup sectors
	payloadLength = 0x24c
	headerEnd     = 0x250
)

// payloadVersion is the first boot protocol version that has the payload fields.
const payloadVersion = 0x208

// unpackers are the programs that decompress a payload from stdin, by the payload's first bytes.
var unpackers = []struct {
	magic   string
	program []string
}{
	{"\xfd7zXZ\x00", []string{"xz", "--decompress", "--stdout"}},
	{"\x28\xb5\x2f\xfd", []string{"zstd", "--decompress", "--stdout"}},
}

// unpackImage writes the kernel that is packed in a vmlinuz to a file vmlinux beside it, and
// returns that file's path. It returns no path and no error if QEMU cannot start the kernel (it has
// no PVH entry), or if this machine has no program to unpack it. The caller must have locked the
// cache folder, which holds the file until it is complete.
func unpackImage(ctx context.Context, cache, image string) (path string, err error) {
	f, err := os.Open(image)
	if err != nil {
		return "", err
	}
	defer f.Close()
	packed, program, err := payload(f)
	if err != nil || packed == nil {
		return "", err
	}
	dir, err := TempDir(cache)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	kernel, err := os.Create(filepath.Join(dir, "vmlinux"))
	if err != nil {
		return "", err
	}
	defer kernel.Close()
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, program[0], program[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = packed, kernel, &stderr
	switch err := cmd.Run(); {
	case errors.Is(err, exec.ErrNotFound):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("unpack %s: %s: %w: %s", image, program[0], err, strings.TrimSpace(stderr.String()))
	}
	if !hasPVHEntry(kernel) {
		return "", nil
	}
	path = filepath.Join(filepath.Dir(image), strings.Replace(filepath.Base(image), "vmlinuz", "vmlinux", 1))
	if err := os.Rename(kernel.Name(), path); err != nil {
		return "", err
	}
	return path, nil
}

// payload returns the packed kernel in an image and the command that unpacks it, or nothing if
// there is no such command.
func payload(f io.ReaderAt) (io.Reader, []string, error) {
	var head [headerEnd]byte
	if _, err := f.ReadAt(head[:], 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, err
	}
	if binary.LittleEndian.Uint16(head[headerVersion:]) < payloadVersion {
		return nil, nil, nil
	}
	start := (int64(head[setupSectors])+1)*512 + int64(binary.LittleEndian.Uint32(head[payloadOffset:]))
	// The unpacked length follows the packed data (Linux scripts/Makefile.lib, size_append).
	length := int64(binary.LittleEndian.Uint32(head[payloadLength:])) - 4
	packed := io.NewSectionReader(f, start, max(length, 0))
	for _, u := range unpackers {
		magic := make([]byte, len(u.magic))
		if _, err := packed.ReadAt(magic, 0); err == nil && string(magic) == u.magic {
			return packed, u.program, nil
		}
	}
	return nil, nil, nil
}

// pvhEntry is the type of the ELF note with the address at which a hypervisor starts the kernel in
// 32-bit mode (Linux include/xen/interface/elfnote.h, XEN_ELFNOTE_PHYS32_ENTRY).
const pvhEntry = 18

// hasPVHEntry reports whether QEMU can boot an ELF file: QEMU needs Xen's note with the entry.
func hasPVHEntry(f io.ReaderAt) bool {
	kernel, err := elf.NewFile(f)
	if err != nil {
		return false
	}
	for _, p := range kernel.Progs {
		if p.Type != elf.PT_NOTE {
			continue
		}
		notes, err := io.ReadAll(p.Open())
		if err != nil {
			return false
		}
		for len(notes) >= 12 {
			nameLen, descLen, kind := binary.LittleEndian.Uint32(notes), binary.LittleEndian.Uint32(notes[4:]), binary.LittleEndian.Uint32(notes[8:])
			name := notes[12:]
			next := 12 + noteAlign(nameLen) + noteAlign(descLen)
			if kind == pvhEntry && bytes.HasPrefix(name, []byte("Xen\x00")) {
				return true
			}
			if next > uint64(len(notes)) {
				break
			}
			notes = notes[next:]
		}
	}
	return false
}

// noteAlign rounds n up to the alignment of notes.
func noteAlign(n uint32) uint64 { return (uint64(n) + 3) &^ 3 }
