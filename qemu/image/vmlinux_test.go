package image

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// note is a note of an ELF file.
func note(name string, kind uint32, desc string) (b []byte) {
	for _, n := range []int{len(name), len(desc), int(kind)} {
		b = binary.LittleEndian.AppendUint32(b, uint32(n))
	}
	for _, s := range []string{name, desc} {
		b = append(b, s...)
		b = append(b, make([]byte, -len(s)&3)...)
	}
	return b
}

// pvhNote is Linux's.
var pvhNote = note("Xen\x00", 18, "\x00\x00\x00\x01")

// elfFile is an ELF file with these notes.
func elfFile(notes []byte) []byte {
	const header, program = 64, 56
	var b bytes.Buffer
	for _, part := range []any{
		elf.Header64{
			Ident: [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
			Type:  uint16(elf.ET_EXEC), Machine: uint16(elf.EM_X86_64), Version: uint32(elf.EV_CURRENT),
			Phoff: header, Ehsize: header, Phentsize: program, Phnum: 2,
		},
		elf.Prog64{Type: uint32(elf.PT_LOAD), Off: header, Filesz: program},
		elf.Prog64{Type: uint32(elf.PT_NOTE), Off: header + 2*program, Filesz: uint64(len(notes))},
		notes,
	} {
		if err := binary.Write(&b, binary.LittleEndian, part); err != nil {
			panic(err)
		}
	}
	return b.Bytes()
}

// packedImage is a vmlinuz of a version of the boot protocol with something packed in it.
func packedImage(version uint16, packed string) []byte {
	const sectors, code = 3, 100
	b := make([]byte, (sectors+1)*512+code)
	b[0x1f1] = sectors
	copy(b[0x202:], "HdrS")
	binary.LittleEndian.PutUint16(b[0x206:], version)
	binary.LittleEndian.PutUint32(b[0x248:], code)
	binary.LittleEndian.PutUint32(b[0x24c:], uint32(len(packed)+4))
	return append(append(b, packed...), "sizeand more code"...)
}

// In these tests xz and zstd only remove the magic number.
const (
	xzMagic, zstdMagic = "\xfd7zXZ\x00", "\x28\xb5\x2f\xfd"
	unXZ, unZstd       = `tail -c +7`, `tail -c +5`
)

// TestOnlyAKernelThatQEMUCanStartIsUnpacked: the kernel in an image is unpacked with the program for its format, and is there
// only if QEMU can start it.
func TestOnlyAKernelThatQEMUCanStartIsUnpacked(t *testing.T) {
	good := string(elfFile(append(note("Linux\x00", 18, "not Xen's"), pvhNote...)))
	for _, c := range []struct {
		name  string
		image []byte
		want  string // empty: not unpacked
	}{
		{"xz", packedImage(0x20f, xzMagic+good), good},
		{"zstd", packedImage(0x20f, zstdMagic+good), good},
		{"the first version with a payload", packedImage(0x208, xzMagic+good), good},
		{"a version without a payload", packedImage(0x207, xzMagic+good), ""},
		{"another format", packedImage(0x20f, "LZIP"+good), ""},
		{"not packed at all", packedImage(0x20f, good), ""},
		{"no ELF file", packedImage(0x20f, xzMagic+strings.Repeat("x", 200)), ""},
		{"no entry for QEMU", packedImage(0x20f, xzMagic+string(elfFile(note("Xen\x00", 17, "1234")))), ""},
		{"another's note", packedImage(0x20f, xzMagic+string(elfFile(note("Xem\x00", 18, "1234")))), ""},
		{"no notes", packedImage(0x20f, xzMagic+string(elfFile(nil))), ""},
		{"half a note", packedImage(0x20f, xzMagic+string(elfFile(pvhNote[:11]))), ""},
		{"a note that claims to be longer than all", packedImage(0x20f, xzMagic+string(elfFile(append([]byte("\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\x00"), pvhNote...)))), ""},
		{"no payload", packedImage(0x20f, ""), ""},
		{"a short file", make([]byte, 515), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			debian(t, map[string]string{"xz": unXZ, "zstd": unZstd})
			dir := t.TempDir()
			image := filepath.Join(dir, "vmlinuz-1")
			if err := os.WriteFile(image, c.image, 0o600); err != nil {
				t.Fatal(err)
			}
			path, err := unpackImage(t.Context(), dir, image)
			if err != nil || (path != "") != (c.want != "") {
				t.Fatalf("%q, %v", path, err)
			}
			names := filesOf(t, dir)
			if c.want == "" {
				if names != "vmlinuz-1" {
					t.Errorf("left over: %s", names)
				}
				return
			}
			b, err := os.ReadFile(path)
			if err != nil || string(b) != c.want || names != "vmlinux-1 vmlinuz-1" {
				t.Errorf("%d bytes, %v, in %s", len(b), err, names)
			}
		})
	}
}

// filesOf lists a folder.
func filesOf(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

// TestUnpackImageFails: a damaged image is an error that names it. A machine without the program to
// unpack it keeps the packed kernel.
func TestUnpackImageFails(t *testing.T) {
	dir := t.TempDir()
	image := filepath.Join(dir, "vmlinuz-1")
	if _, err := unpackImage(t.Context(), dir, image); !os.IsNotExist(err) {
		t.Errorf("no image: %v", err)
	}
	if _, err := unpackImage(t.Context(), dir, dir); !errors.Is(err, unix.EISDIR) {
		t.Errorf("an image that cannot be read: %v", err)
	}
	if err := os.WriteFile(image, packedImage(0x20f, xzMagic+string(elfFile(pvhNote))), 0o600); err != nil {
		t.Fatal(err)
	}
	debian(t, map[string]string{"xz": `echo "no luck" >&2; exit 1`})
	if path, err := unpackImage(t.Context(), dir, image); path != "" || err == nil || err.Error() != "unpack "+image+": xz: exit status 1: no luck" {
		t.Errorf("%q, %v", path, err)
	}
	t.Setenv("PATH", t.TempDir())
	if path, err := unpackImage(t.Context(), dir, image); path != "" || err != nil {
		t.Errorf("without xz: %q, %v", path, err)
	}
	if names := filesOf(t, dir); names != "vmlinuz-1" {
		t.Errorf("left over: %s", names)
	}
}

// TestAFetchedKernelIsUnpackedOnce: a kernel that has been fetched is unpacked, also one that is in the cache since
// before, and not a second time.
func TestAFetchedKernelIsUnpackedOnce(t *testing.T) {
	packed := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(packed, packedImage(0x20f, xzMagic+string(elfFile(pvhNote))), 0o600); err != nil {
		t.Fatal(err)
	}
	once := filepath.Join(t.TempDir(), "once")
	cache, fetched := debian(t, map[string]string{
		"dpkg-deb": dpkgDeb + "\ncp " + packed + ` "$3/boot/vmlinuz-6.1.0-9-amd64"`,
		"xz":       `if [ "$2" = --stdout ]; then mkdir ` + once + `; ` + unXZ + `; else ` + xz + `; fi`,
	})
	want := filepath.Join(cache, "linux-image-6.1.0-9-amd64_6.1.9-1", "boot", "vmlinux-6.1.0-9-amd64")
	for i := range 4 {
		k, err := FetchKernel(t.Context(), cache)
		if err != nil || k.Unpacked != want || k.Boot() != want {
			t.Fatalf("%d: %+v, %v", i, k, err)
		}
		if i == 1 { // as a cache is that an older program filled
			for _, name := range []string{want, once} {
				if err := os.Remove(name); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if n := strings.Count(fetched(), "\n"); n != 1 {
		t.Errorf("downloaded %d times", n)
	}
	if k := (Kernel{Image: "vmlinuz"}); k.Boot() != "vmlinuz" {
		t.Errorf("boots %q", k.Boot())
	}
}
