//! What the demo searches: short descriptions of programs, in our own words.

/// The collection.
pub(super) const DESCRIPTIONS: [&str; 40] = [
    "small web server that serves static files and reverse proxies",
    "web application firewall for busy sites",
    "load balancer that spreads HTTP traffic over many machines",
    "parser that turns JSON text into Python objects",
    "fast YAML reader and writer for Python programs",
    "command line tool that filters and reshapes JSON",
    "relational database with transactions and SQL",
    "key-value store that keeps everything in memory",
    "library for reading and writing spreadsheets",
    "text editor for the terminal with syntax highlighting",
    "graphical editor for vector drawings",
    "program for retouching photographs",
    "music player with playlists and an equalizer",
    "converter between many audio and video formats",
    "recorder and editor for multitrack sound",
    "turn-based strategy game about ancient empires",
    "chess program with a strong engine",
    "arcade game in which a ball breaks bricks",
    "flight simulator with real world scenery",
    "tool that checks C programs for memory errors",
    "debugger for compiled programs",
    "compiler for the C and C++ languages",
    "profiler that shows where a program spends its time",
    "version control system for source code",
    "backup program that stores only what has changed",
    "encrypts files and signs messages with public keys",
    "password manager for the desktop",
    "scanner that finds open ports on a network",
    "captures network traffic and shows its packets",
    "virtual private network with modern cryptography",
    "mail server that delivers messages to local users",
    "filter that keeps unwanted mail out of the inbox",
    "chat client for several messaging networks",
    "planetarium that draws the night sky",
    "statistics package with its own programming language",
    "plots functions and data as curves and surfaces",
    "viewer for molecules in three dimensions",
    "aligns sequences of DNA and of proteins",
    "fonts with letters for many of the world's scripts",
    "documentation generator that reads comments in source code",
];

/// What is looked for.
pub(super) const QUERIES: [&str; 4] =
    ["web server", "python json library", "find memory leaks in a program", "strategy game"];
