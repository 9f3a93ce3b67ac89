/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

// Command docs writes the pages of docs/ that come from the code into a folder: what the server
// measures, the events that it sends, and the fields of its API.
package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// pages are what is written, by the names of the files.
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

// run writes all pages into a folder, and none of them if one cannot be written.
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
