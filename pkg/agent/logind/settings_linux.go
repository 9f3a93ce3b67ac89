// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package logind

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// configDirs are where systemd looks for drop-ins of logind. A file hides those of the same name
// in the directories after its own.
var configDirs = []string{
	"/etc/systemd/logind.conf.d", "/run/systemd/logind.conf.d", "/usr/local/lib/systemd/logind.conf.d", "/usr/lib/systemd/logind.conf.d",
}

// mainFiles are the main configuration files of logind. The first one that exists is read, before
// all drop-ins.
var mainFiles = []string{
	"/etc/systemd/logind.conf", "/run/systemd/logind.conf", "/usr/local/lib/systemd/logind.conf", "/usr/lib/systemd/logind.conf",
}

// setting is where the configuration of logind sets the longest delay, and to what.
type setting struct {
	path, value string
}

// effectiveSetting finds the file that decides on InhibitDelayMaxSec, zero if no file sets it.
func effectiveSetting(root string) (setting, error) {
	names := map[string]string{}
	for _, dir := range slices.Backward(configDirs) {
		entries, err := os.ReadDir(filepath.Join(string(filepath.Separator), root, dir))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return setting{}, fmt.Errorf("read the configuration of logind: %w", err)
		}
		for _, entry := range entries {
			if strings.HasSuffix(entry.Name(), ".conf") {
				names[entry.Name()] = filepath.Join(dir, entry.Name())
			}
		}
	}
	var paths []string
	for _, path := range mainFiles {
		if _, err := os.Stat(filepath.Join(string(filepath.Separator), root, path)); err == nil {
			paths = append(paths, path)
			break
		}
	}
	// The drop-ins of all directories are read in the order of their names, and the last one
	// decides.
	for _, name := range slices.Sorted(maps.Keys(names)) {
		paths = append(paths, names[name])
	}
	var found setting
	for _, path := range paths {
		value, err := readSetting(filepath.Join(string(filepath.Separator), root, path))
		if err != nil {
			return setting{}, fmt.Errorf("read the configuration of logind: %w", err)
		}
		if value != "" {
			found = setting{path: path, value: value}
		}
	}
	return found, nil
}

// readSetting returns the last value of InhibitDelayMaxSec in a file, "" if there is none.
func readSetting(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	value, section := "", ""
	for lines := bufio.NewScanner(file); ; {
		if !lines.Scan() {
			return value, lines.Err()
		}
		line := strings.TrimSpace(lines.Text())
		if strings.HasPrefix(line, "[") {
			section = line
			continue
		}
		key, assigned, ok := strings.Cut(line, "=")
		if ok && section == "[Login]" && strings.TrimSpace(key) == "InhibitDelayMaxSec" && strings.TrimSpace(assigned) != "" {
			value = strings.TrimSpace(assigned)
		}
	}
}
