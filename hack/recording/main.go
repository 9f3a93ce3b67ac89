// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// recording records a command in a terminal as an asciicast (version 2), and renders an asciicast
// to an animated SVG. hack/record.sh uses it for the picture in README.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/creack/pty"
	"github.com/spf13/cobra"
)

func main() {
	root := &cobra.Command{
		Use: "recording", Short: "Record a command in a terminal, and render it", SilenceErrors: true, SilenceUsage: true,
	}
	root.AddCommand(newRecordCommand(), newRenderCommand())
	if err := root.Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

func newRecordCommand() *cobra.Command {
	columns, rows := uint16(80), uint16(24)
	cmd := &cobra.Command{
		Use: "record CAST COMMAND [ARG...]", Short: "Run a command, and write its output to an asciicast", Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			program := exec.CommandContext(cmd.Context(), args[1], args[2:]...)
			r, err := record(program, columns, rows)
			if err != nil {
				return fmt.Errorf("%s: %w", strings.Join(args[1:], " "), err)
			}
			return writeFile(args[0], r.write)
		},
	}
	cmd.Flags().SetInterspersed(false)
	cmd.Flags().Uint16Var(&columns, "columns", columns, "Columns of the terminal.")
	cmd.Flags().Uint16Var(&rows, "rows", rows, "Rows of the terminal.")
	return cmd
}

func newRenderCommand() *cobra.Command {
	title := "A recording of a terminal"
	cmd := &cobra.Command{
		Use: "render CAST SVG", Short: "Render an asciicast to an animated SVG", Args: cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			file, err := os.Open(args[0])
			if err != nil {
				return err
			}
			defer func() { _ = file.Close() }()
			r, err := read(file)
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			all, err := frames(r)
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			return writeFile(args[1], func(w io.Writer) error { return writeSVG(w, title, r.columns, r.rows, all) })
		},
	}
	cmd.Flags().StringVar(&title, "title", title, "What the picture shows, for readers who do not see it.")
	return cmd
}

// record runs a command in a terminal until it ends. A command that fails is an error.
func record(cmd *exec.Cmd, columns, rows uint16) (*recording, error) {
	terminal, err := pty.StartWithSize(cmd, &pty.Winsize{Cols: columns, Rows: rows})
	if err != nil {
		return nil, err
	}
	defer func() { _ = terminal.Close() }()
	r := &recording{columns: int(columns), rows: int(rows)}
	begin := time.Now()
	var pending []byte
	chunk := make([]byte, 4096)
	for {
		n, err := terminal.Read(chunk)
		pending = append(pending, chunk[:n]...)
		// A read may end within a character. Keep its first bytes for the next event.
		whole := len(pending)
		for whole > 0 && whole > len(pending)-utf8.UTFMax && !utf8.Valid(pending[:whole]) {
			whole--
		}
		if whole > 0 {
			r.events = append(r.events, event{at: time.Since(begin), data: string(pending[:whole])})
			pending = append([]byte(nil), pending[whole:]...)
		}
		if err != nil {
			// Linux returns EIO when the command has closed the terminal, which is no error here.
			return r, cmd.Wait()
		}
	}
}

func writeFile(path string, write func(io.Writer) error) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(write(file), file.Close())
}
