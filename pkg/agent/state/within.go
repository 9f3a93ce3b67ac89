// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package state

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"haulout.dev/haulout/pkg/files"
)

// withinName is the file with the last request to shorten a shutdown.
const withinName = "within.json"

// Within is a request to shorten the shutdown that is pending or comes next.
type Within struct {
	// BootID is the boot in which it was made, as BootID returns it.
	BootID string `json:"bootID"`
	// SinceBoot is when it was made, see the function SinceBoot.
	SinceBoot time.Duration `json:"sinceBoot"`
	// Within is how long the machine runs from then on.
	Within time.Duration `json:"within"`
}

// OfKernel reports whether a boot of userspace is one in the boot of the kernel that BootID
// returns: the identity of a boot is that of the kernel, after a soft-reboot followed by what tells
// it from the earlier ones.
func OfKernel(boot, kernel string) bool {
	return boot == kernel || strings.HasPrefix(boot, kernel+"-")
}

// WriteWithin stores a request in a directory, which it creates if needed. It replaces an earlier
// one.
func WriteWithin(dir string, w Within) error {
	data, err := json.Marshal(w)
	if err != nil {
		return err
	}
	if err := files.Replace(filepath.Join(dir, withinName), bytes.NewReader(data), 0o600); err != nil {
		return fmt.Errorf("store the request: %w", err)
	}
	return nil
}

// ReadWithin returns the stored request, nil if there is none.
func ReadWithin(dir string) (*Within, error) {
	data, err := os.ReadFile(filepath.Join(dir, withinName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the request: %w", err)
	}
	w := &Within{}
	if err := json.Unmarshal(data, w); err != nil {
		return nil, fmt.Errorf("read the request in %s: %w", filepath.Join(dir, withinName), err)
	}
	return w, nil
}
