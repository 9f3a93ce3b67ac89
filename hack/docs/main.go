// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Command docs generates the pages of docs/ that come from the code: the metrics of the server, the
// events that it sends, and the fields of its API.
package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// pages maps file names to the functions that write the pages.
var pages = map[string]func(io.Writer, *source) error{
	"api-reference.md": writeAPIReference,
	"events.md":        writeEvents,
	"metrics.md":       writeMetrics,
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: docs FOLDER, in the root of the repository")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "docs:", err)
		os.Exit(1)
	}
}

// run writes all pages to a folder. If the generation of a page fails, run writes none.
func run(folder string) error {
	code, err := readSource("pkg", "scheduler/pkg")
	if err != nil {
		return err
	}
	written := map[string][]byte{}
	for name, write := range pages {
		var page bytes.Buffer
		if err := write(&page, code); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		written[name] = page.Bytes()
	}
	for name, page := range written {
		if err := os.WriteFile(filepath.Join(folder, name), page, 0o644); err != nil {
			return err
		}
	}
	return nil
}
