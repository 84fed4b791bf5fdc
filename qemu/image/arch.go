package image

import (
	"bufio"
	"context"
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Arch is the architecture of a guest, as Debian and Go name it.
type Arch string

// Architectures of guests.
const (
	AMD64 Arch = "amd64"
	ARM64 Arch = "arm64"
)

// machine is what programs of the architecture say of themselves.
func (a Arch) machine() elf.Machine {
	if a == ARM64 {
		return elf.EM_AARCH64
	}
	return elf.EM_X86_64
}

// archOf returns the architecture of a kernel by its release, which ends in its name.
func archOf(release string) Arch {
	if strings.HasSuffix(release, string(ARM64)) {
		return ARM64
	}
	return AMD64
}

// listsAge is how old the lists of another architecture's packages may be.
const listsAge = 24 * time.Hour

// apt returns the environment in which apt's programs know packages of the architecture. It is nil for
// this machine's architecture. For another one the programs get their own lists in the cache folder,
// from the mirrors of this machine's apt.
func (a Arch) apt(ctx context.Context, cache string) (env []string, err error) {
	if a == AMD64 {
		return nil, nil
	}
	dir := filepath.Join(cache, "apt-"+string(a))
	if err := os.MkdirAll(filepath.Join(dir, "lists", "partial"), 0o755); err != nil {
		return nil, err
	}
	unlock, err := LockDir(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	config, stamp := filepath.Join(dir, "apt.conf"), filepath.Join(dir, "updated")
	env = []string{"APT_CONFIG=" + config}
	if st, err := os.Stat(stamp); err == nil && time.Since(st.ModTime()) < listsAge {
		return env, nil
	}
	suite, err := ownSuite()
	if err != nil {
		return nil, err
	}
	sources, err := debianSources(ctx, suite, "")
	if err != nil {
		return nil, err
	}
	settings := fmt.Sprintf(`#clear APT::Architectures;
APT::Architecture "%[2]s"; APT::Architectures:: "%[2]s"; APT::Sandbox::User "root";
Dir::Etc::SourceList "%[1]s/sources.list"; Dir::Etc::SourceParts "/dev/null";
Dir::State::Lists "%[1]s/lists"; Dir::State::status "%[1]s/status"; Dir::Cache "%[1]s";
`, dir, a)
	for name, text := range map[string]string{"apt.conf": settings, "sources.list": sources, "status": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	if _, err := runWith(ctx, env, "", "apt-get", "-qq", "update", "-o", "APT::Update::Error-Mode=any"); err != nil {
		return nil, err
	}
	return env, os.WriteFile(stamp, nil, 0o644)
}

// ownSuite returns the suite of this machine's Debian.
func ownSuite() (string, error) {
	f, err := os.Open("/etc/os-release")
	if err != nil {
		return "", err
	}
	defer f.Close()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		if name, ok := strings.CutPrefix(sc.Text(), "VERSION_CODENAME="); ok && Suites[name] != "" {
			return name, nil
		}
	}
	return "", fmt.Errorf("this machine is neither Debian 12 nor 13, whose mirrors would have packages of other architectures")
}
